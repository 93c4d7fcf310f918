"""Sequences for token classification: ``<s> subwords of a sentence </s>``, long sentences in overlapping windows.

Every word is labelled once: at its first subword, in the window in which that has the most context.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from mae_lm_fairseq.text.tokenizer import BOS, EOS, Tokenizer
from mae_lm_fairseq.text.windows import Windows, padded
from mae_lm_fairseq.utils.errors import UserError

IGNORED = -100
"""Target of tokens that have none, as in torch's cross-entropy."""
SPECIAL_TOKENS = 2
MIN_SAMPLE = 8
"""Minimum of ``tokens_per_sample``: leaves room for a few words."""


class Window(NamedTuple):
    """The words from ``begin`` up to ``end`` (exclusive) of a sentence."""

    sentence: int
    begin: int
    end: int
    labelled: np.ndarray
    """int64: the words that are labelled in this window, numbered in the sentence."""
    positions: np.ndarray
    """int64: position of the first subword of each of them in the sequence."""
    size: int
    """Length of the sequence in tokens."""


class WordWindows(Windows):
    """Windows of sentences.

    Epochs iterate over the windows that have a target, in an order shuffled by ``seed``.

    Args:
        tokens_per_sample: maximum sequence length, special tokens included. A longer word is truncated.
        targets: number of each word's label, :data:`IGNORED` for none; None for prediction.

    Raises:
        UserError: if sequences have no room for some words.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        tokenizer: Tokenizer,
        tokens_per_sample: int,
        seed: int = 0,
        targets: Sequence[Sequence[int]] | None = None,
    ):
        if tokens_per_sample < MIN_SAMPLE:
            raise UserError(f"--tokens-per-sample {tokens_per_sample} must be at least {MIN_SAMPLE}")
        room = tokens_per_sample - SPECIAL_TOKENS
        words = list(dict.fromkeys(chain.from_iterable(sentences)))
        encoded = zip(words, tokenizer.encode_words(words), strict=True)
        ids = {word: ids[:room] for word, ids in encoded}
        self.sentences = [[ids[word] for word in sentence] for sentence in sentences]
        self.targets = targets
        self.windows = []
        for number, sentence in enumerate(self.sentences):
            self.windows += windows_of(number, list(map(len, sentence)), room)
        self.sizes = np.array([window.size for window in self.windows])
        used = [number for number, window in enumerate(self.windows) if self._has_target(window)]
        self.order = np.random.RandomState(seed).permutation(used)

    def _has_target(self, window: Window) -> bool:
        if self.targets is None:
            return True
        targets = self.targets[window.sentence]
        return any(targets[word] != IGNORED for word in window.labelled)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of sentences, words, windows and sentences that needed several windows, by name."""
        split_sentences = {window.sentence for window in self.windows if window.begin > 0}
        return {
            "sentences": len(self.sentences),
            "words": sum(map(len, self.sentences)),
            "windows": len(self.windows),
            "split_sentences": len(split_sentences),
        }

    def __getitem__(self, index: int) -> dict:
        window = self.windows[index]
        words = self.sentences[window.sentence][window.begin : window.end]
        tokens = np.concatenate([[BOS], *words, [EOS]]).astype(np.int64)
        target = np.full(len(tokens), IGNORED)
        if self.targets is not None:
            of_sentence = np.asarray(self.targets[window.sentence])
            target[window.positions] = of_sentence[window.labelled]
        return {"id": index, "tokens": torch.from_numpy(tokens), "target": torch.from_numpy(target)}

    def batch_targets(self, samples: Sequence[dict]) -> dict:
        """Return ``target`` [B, T] int64, and the number of labelled words."""
        target = padded([sample["target"] for sample in samples], IGNORED)
        return {"target": target, "nwords": int(target.ne(IGNORED).sum())}


def windows_of(sentence: int, lengths: Sequence[int], room: int) -> list[Window]:
    """Return the windows of a sentence, given the tokens of each word, at most ``room``, and the room in a window.

    Each has as many words as fit, and half of a window overlaps with the next.
    """
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    starts = ends - lengths
    limits = []
    begin = 0
    while True:
        end = int(np.searchsorted(ends, starts[begin] + room, side="right"))
        limits.append((begin, end))
        if end == len(lengths):
            break
        # The first word that leaves half of the window, and enough for the next word.
        half = ends[end - 1] - room // 2
        first = max(half, ends[end] - room)
        begin = max(begin + 1, int(np.searchsorted(starts, first)))

    most_context = np.full(len(starts), -1)
    owners = np.zeros(len(starts), dtype=np.int64)
    for number, (begin, end) in enumerate(limits):
        inside = starts[begin:end]
        context = np.minimum(inside - starts[begin], ends[end - 1] - inside)
        is_more = context > most_context[begin:end]
        most_context[begin:end][is_more] = context[is_more]
        owners[begin:end][is_more] = number

    windows = []
    for number, (begin, end) in enumerate(limits):
        is_labelled = owners[begin:end] == number
        labelled = begin + is_labelled.nonzero()[0]
        positions = 1 + starts[labelled] - starts[begin]  # after <s>
        size = int(ends[end - 1] - starts[begin]) + SPECIAL_TOKENS
        windows.append(Window(sentence, begin, end, labelled, positions, size))
    return windows
