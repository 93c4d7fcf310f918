"""Measure what linear probes read off the frozen hidden states of every layer.

For each layer a logistic regression predicts a column of CoNLL-U files, such as the part of speech, from the state of
each word's first subword. Its controls are the embeddings (layer 0), the same architecture with random weights, and
the label that is most frequent in training. Writes results.json and report.md.

Example:
    mae-lm probe checkpoint_last.pt --data-bin data-bin --train ewt-train.conllu --test ewt-test.conllu \\
        --dev ewt-dev.conllu --column UPOS --limit 2500 --out results/upos
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from mae_lm_fairseq.measures.measure import Baseline, Data, Measure, ModelToMeasure, Value
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader, padded_batches
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES, ratio_interval
from mae_lm_fairseq.statistics.token_states import EncoderStates, layer_ranges
from mae_lm_fairseq.text.conllu import LabelledSentence, read_conllu
from mae_lm_fairseq.text.tokenizer import BOS, EOS
from mae_lm_fairseq.utils.command_line import Count, File
from mae_lm_fairseq.utils.output import accuracy_cell, escaped, markdown_table, progress_bars
from mae_lm_fairseq.utils.versions import versions

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

ITERATIONS = 1000
"""At most, of the solver; fewer are needed on standardised states."""
MEMORY = 1 << 31
"""Bytes of hidden states to hold at a time. If all layers need more, the text is encoded several times."""
SETTINGS = {
    "iterations": ITERATIONS,
    "resamples": RESAMPLES,
    "bootstrap_seed": BOOTSTRAP_SEED,
    "random_weights_seed": RANDOM_SEED,
}
_LOOKUP = "lookup: the most frequent label of each word"


@dataclass(frozen=True, kw_only=True)
class Probe(Measure):
    """Linear probes of frozen hidden states for word labels, layer by layer.

    Attributes:
        column: the column to predict.
        limit: train on N sentences, evenly spaced (default: all).
    """

    kind: ClassVar = "probe"
    needs: ClassVar = ("probe_train", "probe_test")
    also_reads: ClassVar = ("probe_dev",)
    values: ClassVar = (
        Value("lookup"),
        Value("most_frequent_label"),
        Value("ambiguous_lookup", optional=True),
        Value("ambiguous_words", optional=True),
        Value(
            "accuracy",
            "accuracy on all words (%)",
            by_layer=True,
            shown=True,
            baseline=Baseline("lookup", _LOOKUP),
        ),
        Value("dev_accuracy", by_layer=True),
        Value(
            "ambiguous_accuracy",
            "accuracy on ambiguous words (%)",
            by_layer=True,
            shown=True,
            baseline=Baseline("ambiguous_lookup", _LOOKUP),
        ),
    )
    column: Literal["UPOS", "XPOS", "FEATS", "DEPREL"] = "UPOS"
    limit: Count | None = None

    def check(self, data: Data) -> None:
        super().check(data)
        self.sentences(data)

    def sentences(self, data: Data) -> dict[str, list[LabelledSentence]]:
        """Return the sentences by set: ``train``, ``test`` and perhaps ``dev``, which chooses the best layer."""
        sentences = {
            "train": read_conllu(data.probe_train, self.column, self.limit),
            "test": read_conllu(data.probe_test, self.column),
        }
        if data.probe_dev:
            sentences["dev"] = read_conllu(data.probe_dev, self.column)
        return sentences

    def measure(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the result of :func:`probe_layers`."""
        return probe_layers(model.open(), self.sentences(model.data), model.label)

    def recorded(self, result: dict[str, Any]) -> dict[str, float | list[float]]:
        """Return accuracies in per cent: of each layer, also on words that are ambiguous in training; of baselines."""
        rows = result["layers"]
        values = {}
        for value in self.values:
            if value.by_layer and value.name in rows[0]:  # without a dev set or ambiguous words, some have none
                values[value.name] = [100 * row[value.name] for row in rows]
        values["lookup"] = 100 * result["lookup"]["accuracy"]
        values["most_frequent_label"] = 100 * result["majority"]["accuracy"]
        if result["ambiguous_words"]:
            values["ambiguous_lookup"] = 100 * result["ambiguous_lookup"]
            values["ambiguous_words"] = 100 * result["ambiguous_words"] / result["test_words"]
        return values


# The verb measures this control beside every model, so that only a plan has an option for it.
@dataclass(frozen=True, kw_only=True)
class ProbeOrControl(Probe):
    """Linear probes of frozen hidden states for word labels, layer by layer.

    Attributes:
        random_weights: measure the architecture with random weights instead, as a control.
    """

    random_weights: bool = False


_REPORT = """\
# Probes of {column}

Accuracy of a logistic regression on the frozen state of each word's first subword, trained on `{train}`, tested on \
`{test}`. In brackets 95 % intervals ({resamples:,} bootstrap resamples of the test sentences). Layer 0 is the \
embeddings. The best layer is that of {chosen}.

{table}
"""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Models and data of linear probes.

    Attributes:
        train: CoNLL-U, plain or compressed, to train on.
        test: CoNLL-U, plain or compressed, to test on.
        dev: CoNLL-U to choose the best layer on (default: ``--test``).
    """

    measure: Probe
    train: File
    test: File
    dev: File | None = None

    def data(self) -> Data:
        return Data(self.data_bin, probe_train=self.train, probe_test=self.test, probe_dev=self.dev)

    def about(self) -> dict[str, Any]:
        data = {
            "train": str(self.train),
            "test": str(self.test),
            "dev": str(self.dev) if self.dev else None,
            "column": self.measure.column,
            "limit": self.measure.limit,
        }
        software = versions() | {"scikit-learn": version("scikit-learn")}
        return {"versions": software, "data": data, "settings": SETTINGS | {"ema": self.ema}}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        probed = self.measure.measure(model)
        control = self.measure.measure(model.untrained())
        return {**probed, "random weights": control["layers"]}

    def report(self, results: Mapping[str, Any]) -> str:
        chosen = f"`{self.dev}`" if self.dev else "the test text"
        table = _table(results["models"])
        return _REPORT.format(**results["data"], resamples=RESAMPLES, chosen=chosen, table=table)


def _table(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of the results of models, by label: a summary, and the layers of each model.

    Each model also has ``random weights``, the layers of its architecture before training.
    """
    header = ["model", "test words", "most frequent label", "lookup", "best layer", "last layer", "last less best"]
    summaries = [_summary(label, model) for label, model in models.items()]
    lines = [
        markdown_table(header, summaries),
        "",
        "Lookup knows words alone: the label that each has most often in training. Ambiguous words have several "
        "labels in training; there a layer that is better than lookup and than layer 0 has read the context.",
    ]
    for label, model in models.items():
        lines += ["", f"## {escaped(label)}", ""]
        rows = []
        for row, control in zip(model["layers"], model["random weights"], strict=True):
            ambiguous = _per_cent(row["ambiguous_accuracy"]) if "ambiguous_accuracy" in row else ""
            rows.append([str(row["layer"]), accuracy_cell(row), ambiguous, accuracy_cell(control)])
        if model["ambiguous_words"]:
            lines += [f"Of the test words {model['ambiguous_words']:,} are ambiguous.", ""]
            rows.append(["lookup", accuracy_cell(model["lookup"]), _per_cent(model["ambiguous_lookup"]), ""])
        lines.append(markdown_table(["layer", "model", "ambiguous words", "random weights"], rows))
    return "\n".join(lines)


def _per_cent(accuracy: float) -> str:
    return f"{100 * accuracy:.1f}%"


def _summary(label: str, model: Mapping[str, Any]) -> list[str]:
    layers = model["layers"]
    best = layers[model["best_layer"]]
    return [
        label,
        f"{model['test_words']:,}",
        accuracy_cell(model["majority"]),
        accuracy_cell(model["lookup"]),
        f"{best['layer']}: {accuracy_cell(best)}",
        accuracy_cell(layers[-1]),
        f"{100 * model['last_less_best']:+.1f}",
    ]


class TokenisedSet(NamedTuple):
    """A set of sentences as the tokens of a model, and their labelled words."""

    texts: list[list[int]]
    positions: list[list[int]]
    """The first subword of each word, by sentence."""
    labels: list[str]
    sentences: list[int]
    """The number of each word's sentence."""
    words: list[str]
    """The form of each word."""


def probe_layers(reader: Reader, data: Mapping[str, Sequence[LabelledSentence]], title: str) -> dict[str, Any]:
    """Return the accuracy of a probe on each layer, and of baselines that know words alone.

    Args:
        data: sentences by set: ``train``, ``test``, and perhaps ``dev``, which chooses the best layer.
        title: name of the model in the progress display.

    Returns:
        ``train_words``, ``test_words``, ``classes``, ``majority`` (the accuracy of the most frequent label), ``lookup``
        (that of the most frequent label of each word in training), ``ambiguous_words`` (number of test words that have
        several labels in training), ``ambiguous_lookup``, ``layers`` (from the embeddings up, with the accuracies of
        :func:`accuracy_with_interval`, and ``ambiguous_accuracy``), ``best_layer``, ``last_less_best``.
    """
    sets = {name: _tokenised(reader, sentences) for name, sentences in data.items()}
    train = sets["train"]
    test = sets["test"]
    test_labels = np.array(test.labels)

    [(most_frequent, _)] = Counter(train.labels).most_common(1)
    likely, ambiguous = lookup(train.words, train.labels)
    looked_up = [likely.get(word, most_frequent) for word in test.words]
    is_looked_up = np.array(looked_up) == test_labels
    is_ambiguous = np.array([word in ambiguous for word in test.words], dtype=bool)
    ambiguous_lookup = float(is_looked_up[is_ambiguous].mean()) if is_ambiguous.any() else None

    layers = _layers(reader, sets, title, is_ambiguous)
    best = max(layers, key=lambda row: row.get("dev_accuracy", row["accuracy"]))
    return {
        "train_words": len(train.labels),
        "test_words": len(test.labels),
        "classes": len(set(train.labels)),
        "majority": accuracy_with_interval(test_labels == most_frequent, test.sentences),
        "lookup": accuracy_with_interval(is_looked_up, test.sentences),
        "ambiguous_words": int(is_ambiguous.sum()),
        "ambiguous_lookup": ambiguous_lookup,
        "layers": layers,
        "best_layer": best["layer"],
        "last_less_best": layers[-1]["accuracy"] - best["accuracy"],
    }


def _tokenised(reader: Reader, sentences: Sequence[LabelledSentence]) -> TokenisedSet:
    """Return sentences as tokens; words beyond the maximum length of the model are left out."""
    tokenised = TokenisedSet(texts=[], positions=[], labels=[], sentences=[], words=[])
    room = reader.states.max_tokens - 1
    for number, sentence in enumerate(sentences):
        ids, spans = reader.encode(sentence.text)
        tokens = [BOS, *map(int, ids)][:room]
        positions = []
        subwords = first_subwords(spans, sentence.starts)
        for subword, label, word in zip(subwords, sentence.labels, sentence.words, strict=True):
            position = 1 + subword
            if position < len(tokens):
                positions.append(position)
                tokenised.labels.append(label)
                tokenised.sentences.append(number)
                tokenised.words.append(word)
        tokenised.texts.append([*tokens, EOS])
        tokenised.positions.append(positions)
    return tokenised


def _layers(
    reader: Reader, sets: Mapping[str, TokenisedSet], title: str, is_ambiguous: np.ndarray
) -> list[dict[str, Any]]:
    """Return the accuracies of a probe on each layer."""
    encoder = reader.states
    progress = progress_bars(title)
    words = sum(len(tokenised.labels) for tokenised in sets.values())
    bytes_per_layer = 4 * encoder.dim * words
    rows = []
    for layers in layer_ranges(encoder.layers, bytes_per_layer, MEMORY):
        states = {}
        for name, tokenised in sets.items():
            show = partial(progress, name=name)
            states[name] = token_states(encoder, tokenised.texts, tokenised.positions, layers, show)

        for number, layer in enumerate(progress(layers, "probes")):
            layer_states = {name: by_layer[number] for name, by_layer in states.items()}
            rows.append({"layer": layer, **_accuracies(sets, layer_states, is_ambiguous)})
    return rows


def _accuracies(
    sets: Mapping[str, TokenisedSet], states: Mapping[str, np.ndarray], is_ambiguous: np.ndarray
) -> dict[str, float]:
    """Return the accuracies of a probe on one layer, given the states [words, dim] of each set."""
    test = sets["test"]
    classifier = fitted(states["train"], sets["train"].labels)
    is_right = predicts(classifier, states["test"], test.labels)
    row = accuracy_with_interval(is_right, test.sentences)
    if is_ambiguous.any():
        row["ambiguous_accuracy"] = float(is_right[is_ambiguous].mean())
    if "dev" in sets:
        row["dev_accuracy"] = float(predicts(classifier, states["dev"], sets["dev"].labels).mean())
    return row


def first_subwords(spans: Sequence[tuple[int, int]], starts: Sequence[int]) -> list[int]:
    """Return the index of the first token of each word; the number of tokens for a word after the last one.

    Args:
        spans: start and end of each token in characters, ascending.
        starts: where each word starts, in characters.
    """
    ends = [int(end) for _, end in spans]
    return [bisect_right(ends, start) for start in starts]


def token_states(
    encoder: EncoderStates,
    texts: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    layers: range,
    progress: Callable[[Sequence], Iterable],
) -> list[np.ndarray]:
    """Return the hidden states of some tokens of clean texts.

    Args:
        positions: the tokens of each text.
        layers: the layers; 0 are the embeddings.
        progress: wraps the sequence of batches, for example to show a progress bar.

    Returns:
        For each layer float32[tokens, dim], in the order of texts and positions.
    """
    starts = np.cumsum([0, *map(len, positions)])
    outputs = [np.empty((starts[-1], encoder.dim), dtype=np.float32) for _ in layers]
    for numbers, tokens in padded_batches(texts, encoder.pad, progress):
        length = tokens.shape[1]
        flat_positions: list[int] = []  # in the flattened batch
        places: list[int] = []  # in the output
        for row, number in enumerate(numbers):
            flat_positions += [row * length + position for position in positions[number]]
            places += range(starts[number], starts[number + 1])

        wanted = torch.tensor(flat_positions, dtype=torch.int64)
        hidden_states = encoder(tokens, see_masks=False)
        for layer, output in zip(layers, outputs, strict=True):
            states, index = hidden_states[layer]
            # States are packed: index lists the flat positions that the layer computes, in ascending order.
            packed = torch.searchsorted(index, wanted)
            output[places] = states[packed.to(states.device)].cpu().numpy()
    return outputs


def fitted(states: np.ndarray, labels: Sequence[str]) -> "Pipeline":
    """Return a logistic regression of labels on standardised states [words, dim]."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    return classifier.fit(states, labels)


def predicts(classifier: "Pipeline", states: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """Return which labels a classifier predicts from states [words, dim], bool[words]."""
    return classifier.predict(states) == np.asarray(labels)


def lookup(words: Sequence[str], labels: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the most frequent label of each word, and the words with several labels."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for word, label in zip(words, labels, strict=True):
        by_word[word][label] += 1
    likely = {word: max(counts, key=counts.get) for word, counts in by_word.items()}
    ambiguous = {word for word, counts in by_word.items() if len(counts) > 1}
    return likely, ambiguous


def accuracy_with_interval(correct: np.ndarray, sentences: Sequence[int]) -> dict[str, float]:
    """Return the accuracy over words, with a 95 % interval from resampling sentences.

    Args:
        correct: bool[words].
        sentences: the number of each word's sentence.

    Returns:
        ``accuracy``, ``low`` and ``high`` in [0, 1].
    """
    low, high = ratio_interval(np.bincount(sentences, correct), np.bincount(sentences))
    return {"accuracy": float(correct.mean()), "low": low, "high": high}
