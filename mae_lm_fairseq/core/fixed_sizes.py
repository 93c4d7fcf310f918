"""Batches of fixed sizes: dummy rows behind a ragged batch bring its numbers of tokens to those of a bucket.

A CUDA graph (:mod:`~mae_lm_fairseq.core.graphs`) repeats operations of the same sizes. Ragged batches differ in their
numbers of visible, masked and predicted tokens, so that each would need a graph of its own. With dummies there is one
for each of at most :data:`BUCKETS` buckets. Rows do not attend to each other, and the loss ignores the targets of
dummies, so loss and gradients are those of the ragged batch.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BUCKETS = 32
"""Most buckets of a training. With more, there would be less padding, and more graphs to capture and keep."""
DUMMY_ROW = 64
"""Most tokens of a dummy row: one tile of the attention kernel, so that dummies attend to few others."""
IGNORED = -1
"""Target of a predicted dummy."""
DEVIATIONS = 5
"""Standard deviations of the number of masked tokens for which a bucket has room; one batch in a million needs more."""


class Counts(NamedTuple):
    """Numbers of tokens of a batch."""

    visible: int
    masked: int
    predicted: int
    """Tokens with a target, as all masked ones have."""

    @property
    def tokens(self) -> int:
        return self.visible + self.masked

    @property
    def kept(self) -> int:
        """Number of visible tokens that are predicted."""
        return self.predicted - self.masked

    @property
    def unpredicted(self) -> int:
        return self.tokens - self.predicted


NO_DUMMIES = Counts(0, 0, 0)


class Bucket(NamedTuple):
    """Sizes of a batch with dummies."""

    rows: int
    width: int
    counts: Counts


class FixedBatch(NamedTuple):
    """A batch with dummies."""

    tokens: Tensor
    """[rows of the bucket, width] int64."""
    target: Tensor
    """[rows of the bucket, width] int64: ``pad`` where nothing is predicted, :data:`IGNORED` at predicted dummies."""
    bucket: Bucket
    dummies: Counts


@dataclass(frozen=True)
class FixedSizes:
    """The buckets of a training, and their dummies.

    One number decides on all sizes of a bucket: that of its tokens, a multiple of :attr:`step`. Of these, as many are
    masked and predicted as the rates let expect, plus a margin.

    Args:
        rows: rows of a batch; the last one of an epoch may have fewer.
        width: tokens of a row at most.
        rate: fraction of the tokens that are predicted.
        kept: fraction of the predicted tokens that are no ``[MASK]`` in the input, but themselves or random ones.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        token: id of any token, for the visible dummies.
    """

    rows: int
    width: int
    rate: float
    kept: float
    pad: int
    mask: int
    token: int

    @property
    def step(self) -> int:
        """Tokens between two buckets. The last bucket is for full batches in which more is masked than expected."""
        return self.rows * math.ceil(self.width / (BUCKETS - 1))

    @property
    def dummy_rows(self) -> int:
        """Rows that a batch of full length may need for its dummies: those of two steps, and of three margins."""
        tokens = 2 * self.step + 3 * (self._margin(BUCKETS * self.step) + 8)
        return math.ceil(tokens / self._dummy_row)

    def bucket(self, number: int) -> Bucket:
        """Return a bucket, the smallest of which is number 1."""
        tokens = number * self.step
        margin = self._margin(tokens)
        masked = _upwards(self.rate * (1 - self.kept) * tokens) + margin
        kept = 0
        if self.kept:
            kept = _upwards(self.rate * self.kept * tokens) + margin
        unpredicted = _upwards((1 - self.rate) * tokens) + margin
        counts = Counts(visible=unpredicted + kept, masked=masked, predicted=masked + kept)
        return Bucket(self.rows + self.dummy_rows, self.width, counts)

    def pad_batch(self, tokens: Tensor, target: Tensor) -> FixedBatch | None:
        """Add dummies to a batch; None if it does not fit into any bucket, as far fewer or more tokens are masked.

        Args:
            tokens: [B, T] int64, the corrupted input.
            target: [B, T] int64, ``pad`` where nothing is predicted.
        """
        rows, length = tokens.shape
        is_mask = tokens.eq(self.mask)
        is_predicted = target.ne(self.pad)
        masked = int(is_mask.sum())
        present = int(tokens.ne(self.pad).sum())
        counts = Counts(present - masked, masked, int(is_predicted.sum()))
        has_other_masks = bool((is_mask & ~is_predicted).any())
        if rows > self.rows or length > self.width or has_other_masks:
            return None
        bucket = self.bucket_of(counts)
        if bucket is None:
            return None
        dummies = Counts(*(most - count for most, count in zip(bucket.counts, counts, strict=True)))
        return self._with_dummies(tokens, target, bucket, dummies)

    def bucket_of(self, counts: Counts) -> Bucket | None:
        """Return the smallest bucket that has room for a batch, with as many dummies as their rows hold."""
        for number in range(math.ceil(counts.tokens / self.step), BUCKETS + 1):
            bucket = self.bucket(number)
            most = bucket.counts
            has_room = counts.unpredicted <= most.unpredicted and counts.kept <= most.kept
            if has_room and counts.masked <= most.masked:
                dummies = most.tokens - counts.tokens
                return bucket if dummies <= self.dummy_rows * self._dummy_row else None
        return None

    def largest_batch(self) -> FixedBatch:
        """Return a batch of the largest bucket that full batches have."""
        tokens = torch.full((self.rows, self.width), self.token)
        target = torch.full_like(tokens, self.pad)
        numbers = torch.arange(tokens.numel()).view_as(tokens)
        is_predicted = numbers < self.rate * tokens.numel()
        is_mask = numbers < self.rate * (1 - self.kept) * tokens.numel()
        return self.pad_batch(tokens.masked_fill(is_mask, self.mask), target.masked_fill(is_predicted, self.token))

    @property
    def _dummy_row(self) -> int:
        return min(DUMMY_ROW, self.width)

    def _margin(self, tokens: int) -> int:
        """Return the margin of a bucket.

        fairseq predicts ``int(rate * length + U)`` tokens of a row, U uniform in [0, 1), whose variance is at most 1/4,
        and draws for each whether it is kept.
        """
        variance = self.rows / 4 + self.rate * tokens * self.kept * (1 - self.kept)
        return math.ceil(DEVIATIONS * math.sqrt(variance))

    def _with_dummies(self, tokens: Tensor, target: Tensor, bucket: Bucket, dummies: Counts) -> FixedBatch:
        rows, length = tokens.shape
        fixed_tokens = tokens.new_full((bucket.rows, bucket.width), self.pad)
        fixed_target = fixed_tokens.clone()
        fixed_tokens[:rows, :length] = tokens
        fixed_target[:rows, :length] = target
        dummy = torch.arange(dummies.tokens)
        row = rows + dummy // self._dummy_row
        column = dummy % self._dummy_row
        fixed_tokens[row, column] = torch.where(dummy < dummies.masked, self.mask, self.token)
        fixed_target[row, column] = torch.where(dummy < dummies.predicted, IGNORED, self.pad)
        return FixedBatch(fixed_tokens, fixed_target, bucket, dummies)


def _upwards(tokens: float) -> int:
    """Round a number of tokens up to a multiple of eight, as matrix products in half precision like it."""
    return 8 * math.ceil(tokens / 8)
