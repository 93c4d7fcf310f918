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
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from mae_lm_fairseq.measures.measure import Baseline, Data, Measure, Trained, Value
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader, padded_batches
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES, ratio_interval
from mae_lm_fairseq.statistics.token_states import EncoderStates
from mae_lm_fairseq.text.conllu import LabelledSentence, read_conllu
from mae_lm_fairseq.text.tokenizer import BOS, EOS
from mae_lm_fairseq.utils.command_line import Count, File
from mae_lm_fairseq.utils.output import accuracy_cell, escaped, markdown_table, progress_bars
from mae_lm_fairseq.utils.versions import versions

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
        Value("ambiguous_lookup"),
        Value("ambiguous_words"),
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
        """Return the sentences by part: ``train``, ``test`` and perhaps ``dev``, which chooses the best layer."""
        sentences = {
            "train": read_conllu(data.probe_train, self.column, self.limit),
            "test": read_conllu(data.probe_test, self.column),
        }
        if data.probe_dev:
            sentences["dev"] = read_conllu(data.probe_dev, self.column)
        return sentences

    def measure(self, model: Trained) -> dict[str, Any]:
        """Return the result of :func:`probe_layers`."""
        return probe_layers(model.open(), self.sentences(model.data), model.label)

    def recorded(self, result: dict[str, Any]) -> dict[str, float | list[float]]:
        """Return accuracies in per cent: of each layer, also on words that are ambiguous in training; of baselines."""
        values = {}
        for value in self.values:
            if value.name in result["layers"][0]:
                values[value.name] = [100 * row[value.name] for row in result["layers"]]
        values["lookup"] = 100 * result["lookup"]["accuracy"]
        values["most_frequent_label"] = 100 * result["majority"]["accuracy"]
        if result["ambiguous_words"]:
            values["ambiguous_lookup"] = 100 * result["ambiguous_lookup"]
            values["ambiguous_words"] = 100 * result["ambiguous_words"] / result["test_words"]
        return values

    def table(self, models: Mapping[str, Mapping[str, Any]]) -> str:
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
                layer = str(row["layer"])
                rows.append([layer, accuracy_cell(row), _ambiguous(row), accuracy_cell(control)])
            if model["ambiguous_words"]:
                lines += [f"Of the test words {model['ambiguous_words']:,} are ambiguous.", ""]
                ambiguous = f"{100 * model['ambiguous_lookup']:.1f}%"
                rows.append(["lookup", accuracy_cell(model["lookup"]), ambiguous, ""])
            lines.append(markdown_table(["layer", "model", "ambiguous words", "random weights"], rows))
        return "\n".join(lines)


def _ambiguous(row: Mapping[str, Any]) -> str:
    return f"{100 * row['ambiguous_accuracy']:.1f}%" if "ambiguous_accuracy" in row else ""


def _summary(label: str, model: Mapping[str, Any]) -> list[str]:
    best, last = model["layers"][model["best_layer"]], model["layers"][-1]
    return [
        label,
        f"{model['test_words']:,}",
        accuracy_cell(model["majority"]),
        accuracy_cell(model["lookup"]),
        f"{best['layer']}: {accuracy_cell(best)}",
        accuracy_cell(last),
        f"{100 * model['last_less_best']:+.1f}",
    ]


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
class Options(ModelOptions, Probe):
    """Models and data of linear probes.

    Attributes:
        train: CoNLL-U, plain or compressed, to train on.
        test: CoNLL-U, plain or compressed, to test on.
        dev: CoNLL-U to choose the best layer on (default: ``--test``).
    """

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
            "column": self.column,
            "limit": self.limit,
        }
        software = versions() | {"scikit-learn": version("scikit-learn")}
        return {"versions": software, "data": data, "settings": SETTINGS | {"ema": self.ema}}

    def compare(self, model: Trained) -> dict[str, Any]:
        probed = self.measure(model)
        control = self.measure(model.untrained())
        return {"model": str(model.path), **probed, "random weights": control["layers"]}

    def report(self, results: Mapping[str, Any]) -> str:
        chosen = f"`{self.dev}`" if self.dev else "the test text"
        table = self.table(results["models"])
        return _REPORT.format(**results["data"], resamples=RESAMPLES, chosen=chosen, table=table)


class Part(NamedTuple):
    """Sentences as the tokens of a model, and their labelled words."""

    texts: list[list[int]]
    positions: list[list[int]]
    """The first subword of each word, by sentence."""
    labels: list[str]
    sentences: np.ndarray
    """int[words]: the number of each word's sentence."""
    words: list[str]
    """The form of each word."""


def probe_layers(reader: Reader, data: Mapping[str, Sequence[LabelledSentence]], label: str) -> dict[str, Any]:
    """Return the accuracy of a probe on each layer, and of baselines that know words alone.

    Args:
        data: sentences by part: ``train``, ``test``, and perhaps ``dev``, which chooses the best layer.

    Returns:
        ``train_words``, ``test_words``, ``classes``, ``majority`` (the accuracy of the most frequent label), ``lookup``
        (that of the most frequent label of each word in training), ``ambiguous_words`` (number of test words that have
        several labels in training), ``ambiguous_lookup``, ``layers`` (from the embeddings up, with the accuracies of
        :func:`accuracy`, and ``ambiguous_accuracy``), ``best_layer``, ``last_less_best``.
    """
    parts = {name: _tokenised(reader, sentences) for name, sentences in data.items()}
    train, test = parts["train"], parts["test"]
    [(most_frequent, _)] = Counter(train.labels).most_common(1)
    likely, ambiguous = lookup(train.words, train.labels)
    test_labels = np.array(test.labels)
    is_looked_up = np.array([likely.get(word, most_frequent) for word in test.words]) == test_labels
    is_ambiguous = np.array([word in ambiguous for word in test.words], dtype=bool)
    of_ambiguous = float(is_looked_up[is_ambiguous].mean()) if is_ambiguous.any() else None
    layers = _layers(reader, parts, label, is_ambiguous)
    best = max(layers, key=lambda row: row.get("dev_accuracy", row["accuracy"]))
    return {
        "train_words": len(train.labels),
        "test_words": len(test.labels),
        "classes": len(set(train.labels)),
        "majority": accuracy(test_labels == most_frequent, test.sentences),
        "lookup": accuracy(is_looked_up, test.sentences),
        "ambiguous_words": int(is_ambiguous.sum()),
        "ambiguous_lookup": of_ambiguous,
        "layers": layers,
        "best_layer": best["layer"],
        "last_less_best": layers[-1]["accuracy"] - best["accuracy"],
    }


def _tokenised(reader: Reader, sentences: Sequence[LabelledSentence]) -> Part:
    """Return sentences as tokens; words beyond the maximum length of the model are left out."""
    texts: list[list[int]] = []
    positions: list[list[int]] = []
    labels: list[str] = []
    numbers: list[int] = []
    words: list[str] = []
    room = reader.states.max_tokens - 1
    for number, sentence in enumerate(sentences):
        ids, spans = reader.encode(sentence.text)
        tokens = [BOS, *map(int, ids)][:room]
        texts.append([*tokens, EOS])
        positions.append([])
        subwords = first_subwords(spans, sentence.starts)
        for subword, label, word in zip(subwords, sentence.labels, sentence.words, strict=True):
            position = 1 + subword
            if position < len(tokens):
                positions[-1].append(position)
                labels.append(label)
                numbers.append(number)
                words.append(word)
    return Part(texts, positions, labels, np.array(numbers), words)


def _layers(reader: Reader, parts: dict[str, Part], label: str, is_ambiguous: np.ndarray) -> list[dict[str, Any]]:
    """Return the accuracies of a probe on each layer."""
    encoder = reader.states
    progress = progress_bars(label)
    words = sum(len(part.labels) for part in parts.values())
    bytes_per_layer = 4 * encoder.dim * words
    layers_at_once = max(1, MEMORY // bytes_per_layer)
    rows = []
    for first in range(0, encoder.layers + 1, layers_at_once):
        layers = range(first, min(first + layers_at_once, encoder.layers + 1))
        states = {}
        for name, part in parts.items():
            show = partial(progress, name=name)
            states[name] = token_states(encoder, part.texts, part.positions, layers, show)

        for number, layer in enumerate(progress(layers, "probes")):
            labelled = {name: (states[name][number], part.labels) for name, part in parts.items()}
            correct, *dev_correct = probe(*labelled.values())
            row = {"layer": layer, **accuracy(correct, parts["test"].sentences)}
            if is_ambiguous.any():
                row["ambiguous_accuracy"] = float(correct[is_ambiguous].mean())
            if dev_correct:
                row["dev_accuracy"] = float(dev_correct[0].mean())
            rows.append(row)
    return rows


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
    progress: Callable[[Sequence], Iterable] = lambda batches: batches,
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
    states = [np.empty((starts[-1], encoder.dim), dtype=np.float32) for _ in layers]
    for batch, tokens in padded_batches(texts, encoder.pad, progress):
        in_batch: list[int] = []
        in_states: list[int] = []
        for row, text in enumerate(batch):
            in_batch += [row * tokens.shape[1] + position for position in positions[text]]
            in_states += range(starts[text], starts[text + 1])

        hidden_states = encoder(tokens, see_masks=False)
        for layer, output in zip(layers, states, strict=True):
            layer_states, index = hidden_states[layer]
            rows_of_states = torch.searchsorted(index, torch.tensor(in_batch, dtype=torch.int64))
            output[in_states] = layer_states[rows_of_states.to(layer_states.device)].cpu().numpy()
    return states


def probe(train: tuple[np.ndarray, Sequence[str]], *tests: tuple[np.ndarray, Sequence[str]]) -> list[np.ndarray]:
    """Train a logistic regression on standardised states, and return which labels it predicts correctly.

    Args:
        train: states [words, dim] and the labels of the words.

    Returns:
        For each of the other texts bool[words].
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    classifier.fit(*train)
    return [classifier.predict(states) == np.asarray(labels) for states, labels in tests]


def lookup(words: Sequence[str], labels: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the most frequent label of each word, and the words with several labels."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for word, label in zip(words, labels, strict=True):
        by_word[word][label] += 1
    likely = {word: max(counts, key=counts.get) for word, counts in by_word.items()}
    ambiguous = {word for word, counts in by_word.items() if len(counts) > 1}
    return likely, ambiguous


def accuracy(correct: np.ndarray, sentences: np.ndarray) -> dict[str, float]:
    """Return the accuracy over words, with a 95 % interval from resampling sentences.

    Args:
        correct: bool[words].
        sentences: int[words]: the number of each word's sentence.

    Returns:
        ``accuracy``, ``low`` and ``high`` in [0, 1].
    """
    low, high = ratio_interval(np.bincount(sentences, correct), np.bincount(sentences))
    return {"accuracy": float(correct.mean()), "low": low, "high": high}
