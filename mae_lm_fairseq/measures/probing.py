"""Linear probes: how well a label of each word can be read off the frozen hidden states of a layer."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.packing import batches_of_similar_length
from mae_lm_fairseq.statistics.effective_rank import ratio_interval
from mae_lm_fairseq.statistics.token_states import StatesOf
from mae_lm_fairseq.text.conllu import LabelledSentence
from mae_lm_fairseq.utils.errors import UserError

ITERATIONS = 1000
"""At most, of the solver; fewer are needed on standardised states."""


def check_sklearn() -> None:
    """Check that scikit-learn is installed. Called before long work that ends in probes.

    Raises:
        UserError: if scikit-learn, which comes with the extra "analysis", is not installed.
    """
    if find_spec("sklearn") is None:
        raise UserError("probes need scikit-learn: pip install scikit-learn, or this package with its extra analysis")


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
        encoder: the encoder.
        texts: ids of each text.
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
    """Return the states [number wanted, dim] at some positions of the flattened batch."""
    return states[torch.searchsorted(index, wanted).to(states.device)].cpu().numpy()


def check_labels(sentences: Sequence[LabelledSentence], path: Path, column: str) -> None:
    """Check that there are two labels to tell apart in the training sentences.

    Raises:
        UserError: if there are not.
    """
    labels = {label for sentence in sentences for label in sentence.labels}
    if len(labels) < 2:
        found = f"only the label {labels.pop()}" if labels else "no label"
        raise UserError(f"{path}: the training sentences have {found} in column {column}; a probe needs two")


def probe(train: tuple[np.ndarray, Sequence[str]], *tests: tuple[np.ndarray, Sequence[str]]) -> list[np.ndarray]:
    """Train a logistic regression on standardised states, and return which labels it predicts correctly.

    Args:
        train: states [words, dim] and the labels of the words.
        tests: the same of other texts.

    Returns:
        For each of the other texts bool[words].
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS)).fit(*train)
    return [classifier.predict(states) == np.asarray(labels) for states, labels in tests]


class Lookup:
    """Baseline that knows words alone: the most frequent label of each word in the training sentences.

    Args:
        words: the training words.
        labels: their labels.
    """

    def __init__(self, words: Sequence[str], labels: Sequence[str]):
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for word, label in zip(words, labels, strict=True):
            self.counts[word][label] += 1
        [(self.most_frequent, _)] = Counter(labels).most_common(1)

    def label(self, word: str) -> str:
        """Return the most frequent label of a word; of all words, for one that was not in training."""
        return self.counts[word].most_common(1)[0][0] if word in self.counts else self.most_frequent

    def are_ambiguous(self, words: Sequence[str]) -> np.ndarray:
        """Return which words have several labels in the training sentences, bool[words]."""
        return np.array([word in self.counts and len(self.counts[word]) > 1 for word in words], dtype=bool)


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
