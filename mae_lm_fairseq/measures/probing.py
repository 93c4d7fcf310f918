"""Linear probes: how well a label of each word can be read off the frozen hidden states of a layer."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.packing import batches_of_similar_length
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES, ratio_interval
from mae_lm_fairseq.statistics.token_states import StatesOf
from mae_lm_fairseq.text.conllu import LabelledSentence
from mae_lm_fairseq.utils.output import progress_bars

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
"""What results depend on, beside options and data."""


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
    looked_up = np.array([likely.get(word, most_frequent) for word in test.words]) == np.array(test.labels)
    is_ambiguous = np.array([word in ambiguous for word in test.words], dtype=bool)
    layers = _layers(reader, parts, label, is_ambiguous)
    best = max(layers, key=lambda row: row.get("dev_accuracy", row["accuracy"]))
    return {
        "train_words": len(train.labels),
        "test_words": len(test.labels),
        "classes": len(set(train.labels)),
        "majority": accuracy(np.array(test.labels) == most_frequent, test.sentences),
        "lookup": accuracy(looked_up, test.sentences),
        "ambiguous_words": int(is_ambiguous.sum()),
        "ambiguous_lookup": float(looked_up[is_ambiguous].mean()) if is_ambiguous.any() else None,
        "layers": layers,
        "best_layer": best["layer"],
        "last_less_best": layers[-1]["accuracy"] - best["accuracy"],
    }


def _tokenised(reader: Reader, sentences: Sequence[LabelledSentence]) -> Part:
    """Return the tokens of sentences, without what is beyond the model's maximum sequence length."""
    texts, positions, labels, numbers, forms = [], [], [], [], []
    room = reader.states.max_tokens - len(reader.line_end) - len(reader.closing)
    for number, sentence in enumerate(sentences):
        ids, spans = reader.encode(sentence.text)
        start = [*reader.opening, *map(int, ids)][:room]
        words = [len(reader.opening) + index for index in first_subwords(spans, sentence.starts)]
        labelled = zip(words, sentence.labels, sentence.words, strict=True)
        kept = [(word, label, form) for word, label, form in labelled if word < len(start)]
        texts.append([*start, *reader.line_end, *reader.closing])
        positions.append([word for word, _, _ in kept])
        labels += [label for _, label, _ in kept]
        forms += [form for _, _, form in kept]
        numbers += [number] * len(kept)
    return Part(texts, positions, labels, np.array(numbers), forms)


def _layers(reader: Reader, parts: dict[str, Part], label: str, is_ambiguous: np.ndarray) -> list[dict[str, Any]]:
    """Return the accuracy of a probe on each layer, of all test words and of those that ``is_ambiguous`` marks."""
    progress = progress_bars(label)
    rows, count, words = [], reader.states.layers + 1, sum(len(part.labels) for part in parts.values())
    at_once = max(1, MEMORY // (4 * reader.states.dim * words))
    for first in range(0, count, at_once):
        layers = range(first, min(first + at_once, count))
        states = [
            token_states(reader.states, part.texts, part.positions, layers, lambda x, name=name: progress(x, name))
            for name, part in parts.items()
        ]
        for layer, *of_layer in progress(list(zip(layers, *states, strict=True)), "probes"):
            labelled = [(x, part.labels) for x, part in zip(of_layer, parts.values(), strict=True)]
            correct, *dev = probe(*labelled)
            rows.append({"layer": layer, **accuracy(correct, parts["test"].sentences)})
            if is_ambiguous.any():
                rows[-1]["ambiguous_accuracy"] = float(correct[is_ambiguous].mean())
            if dev:
                rows[-1]["dev_accuracy"] = float(dev[0].mean())
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
    encoder: StatesOf,
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
    counts = list(map(len, positions))
    ends = np.cumsum(counts)
    states = [np.empty((sum(counts), encoder.dim), dtype=np.float32) for _ in layers]
    for batch in progress(list(batches_of_similar_length(list(map(len, texts))))):
        rows = [torch.as_tensor(texts[text]) for text in batch]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=encoder.pad)
        wanted = [row * tokens.shape[1] + position for row, text in enumerate(batch) for position in positions[text]]
        slots = np.concatenate([np.arange(ends[text] - counts[text], ends[text]) for text in batch])
        found = encoder(tokens, see_masks=False)
        for layer, into in zip(layers, states, strict=True):
            into[slots] = _at(found[layer].states, found[layer].index, torch.tensor(wanted, dtype=torch.int64))
    return states


def _at(states: Tensor, index: Tensor, wanted: Tensor) -> np.ndarray:
    return states[torch.searchsorted(index, wanted).to(states.device)].cpu().numpy()


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

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS)).fit(*train)
    return [classifier.predict(states) == np.asarray(labels) for states, labels in tests]


def lookup(words: Sequence[str], labels: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the most frequent label of each word, and the words with several labels."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for word, label in zip(words, labels, strict=True):
        by_word[word][label] += 1
    likely = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    return likely, {word for word, counts in by_word.items() if len(counts) > 1}


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
