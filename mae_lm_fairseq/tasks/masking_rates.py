"""Masking rates that differ from sequence to sequence: a schedule over updates, or a random rate for each sequence.

Data workers do not know the update, and load batches ahead. So the main process numbers the batches: workers receive
:class:`TrainingSequence`, and :class:`NumberedSequences` passes the update on to the masks. Validation asks for plain
indices, which get the fixed rate ``--mask-prob``.

With ``--loss-weight inverse-rate``, the loss is that of masked diffusion (Sahoo et al., NeurIPS 2024, arXiv 2406.07524;
Nie et al., 2025, arXiv 2502.09992): random rates weight it, in validation as well.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset, MaskTokensDataset
from fairseq.data.iterators import EpochBatchIterator

from mae_lm_fairseq.utils.errors import UserError


class TrainingSequence(NamedTuple):
    """Index of a sequence, and the number of updates before the one that trains on it."""

    index: int
    updates: int


class NumberedBatches:
    """Batches of an epoch whose sequences know their update.

    fairseq slices off the batches that a resumed run has trained on; ``updates`` is that of the first one left.

    Args:
        batches: indices of each batch, in training order.
        updates: number of updates before the one that uses the first batch.
        per_update: number of batches per update (``--update-freq``).
    """

    def __init__(self, batches: Sequence[Sequence[int]], updates: int, per_update: int):
        self.batches = batches
        self.updates = updates
        self.per_update = per_update

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, part: slice) -> "NumberedBatches":
        return NumberedBatches(self.batches[part], self.updates, self.per_update)

    def __iter__(self) -> Iterator[list[TrainingSequence]]:
        for position, batch in enumerate(self.batches):
            updates = self.updates + position // self.per_update
            yield [TrainingSequence(index, updates) for index in batch]


def number_batches(iterator: EpochBatchIterator, updates: int, per_update: int) -> None:
    """Let the next epoch of an iterator have :class:`NumberedBatches`; a later call numbers them anew."""

    def ordered_batches(*order: Any) -> NumberedBatches:
        return NumberedBatches(EpochBatchIterator.ordered_batches(iterator, *order), updates, per_update)

    iterator.ordered_batches = ordered_batches


@dataclass(frozen=True)
class RateSchedule:
    """Rate that moves from ``start`` to ``end`` in ``updates`` updates, and stays there.

    ``shape`` is ``linear`` or ``cosine`` (half a period).
    """

    start: float
    end: float
    updates: int
    shape: str
    weights_loss: ClassVar = False

    def at(self, updates: int) -> float:
        """Return the rate after a number of updates."""
        progress = min(updates / self.updates, 1)
        if self.shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.start + (self.end - self.start) * progress

    def of(self, epoch: int, index: int, updates: int) -> float:
        """Return the rate of a sequence after a number of updates."""
        return self.at(updates)

    def mean(self, updates: int) -> float:
        """Return the mean rate of the first ``updates`` updates, from a thousand of them."""
        return sum(self.at(updates * (k + 0.5) / 1000) for k in range(1000)) / 1000


@dataclass(frozen=True)
class RateRange:
    """Rate of each sequence drawn uniformly from ``low`` to ``high``, by seed, epoch and index of the sequence.

    With ``weights_loss``, the loss of a sequence is divided by its rate, and validation draws rates as well.
    """

    low: float
    high: float
    seed: int
    weights_loss: bool = False

    def of(self, epoch: int, index: int, updates: int | None = None) -> float:
        """Return the rate of a sequence; ``updates`` is not used."""
        # The 2 separates these draws from those of masks and of early masks.
        return np.random.default_rng((2, self.seed, epoch, index)).uniform(self.low, self.high)

    def mean(self, updates: int) -> float:
        """Return the expected rate."""
        return (self.low + self.high) / 2


def variable_rate(cfg: Any) -> RateSchedule | RateRange | None:
    """Return the rate that the options of the task describe; None if it is always ``--mask-prob``.

    Raises:
        UserError: if the options contradict each other, or do not say how long a schedule is.
    """
    has_shape = cfg.mask_prob_updates is not None or cfg.mask_prob_schedule != "linear"
    if has_shape and cfg.mask_prob_end is None:
        raise UserError("--mask-prob-schedule and --mask-prob-updates have no effect without --mask-prob-end")
    if cfg.mask_prob_range is not None:
        return _range(cfg)
    if weights_by_rate(cfg):
        raise UserError(
            f"--loss-weight {cfg.loss_weight} needs rates that differ from sequence to sequence; add --mask-prob-range "
            "0.001,0.999"
        )
    if cfg.mask_prob_end is None:
        return None
    if not 0 < cfg.mask_prob_end < 1:
        raise UserError(f"--mask-prob-end {cfg.mask_prob_end} must be above 0 and below 1")
    updates = schedule_updates(cfg)
    if updates < 1:
        raise UserError(f"--mask-prob-end {cfg.mask_prob_end} needs --mask-prob-updates or --max-update above 0")
    return RateSchedule(cfg.mask_prob, cfg.mask_prob_end, updates, str(cfg.mask_prob_schedule))


def _range(cfg: Any) -> RateRange:
    if cfg.mask_prob_end is not None:
        raise UserError("--mask-prob-range and --mask-prob-end contradict each other; remove one of them")
    try:
        low, high = map(float, cfg.mask_prob_range.split(","))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high < 1:
        raise UserError(f"--mask-prob-range {cfg.mask_prob_range}: give two rising numbers in (0, 1), such as 0.15,0.5")
    return RateRange(low, high, cfg.seed, weights_by_rate(cfg))


def weights_by_rate(cfg: Any) -> bool:
    """Return whether the loss of a sequence is divided by its masking rate."""
    return str(cfg.loss_weight) == "inverse-rate"


def schedule_updates(cfg: Any) -> int:
    """Return the number of updates of a schedule; 0 if the options of the task do not say it."""
    if cfg.mask_prob_updates is not None:
        return cfg.mask_prob_updates
    return int(getattr(cfg, "total_num_update", 0) or cfg.max_update or 0)  # older checkpoints lack total_num_update


class VariableMasksDataset(MaskTokensDataset):
    """fairseq's ``MaskTokensDataset`` with a ``rate`` for each sequence and update.

    Attributes:
        rate: the rates; None for ``mask_prob`` at all times.
        updates: number of updates before the one that trains on the next sequence; None where nothing is trained. The
            rate is then ``mask_prob``, unless rates weight the loss.
    """

    def __init__(self, dataset: FairseqDataset, vocab: Dictionary, rate: RateSchedule | RateRange | None, **masking):
        super().__init__(dataset, vocab, **masking)
        self.rate = rate
        self.fixed_rate = self.mask_prob
        self.updates: int | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._masked(self.epoch, index, self._rate(index))

    def _rate(self, index: int) -> float:
        if self.rate is None:
            return self.fixed_rate
        if self.updates is None and not self.rate.weights_loss:
            return self.fixed_rate
        return self.rate.of(self.epoch, index, self.updates)

    # Each sequence is read three times. fairseq's cache, which this replaces, does not distinguish rates.
    @functools.lru_cache(maxsize=8)  # noqa: B019
    def _masked(self, epoch: int, index: int, rate: float) -> torch.Tensor:
        self.mask_prob = rate
        return self.masked(epoch, index)

    def masked(self, epoch: int, index: int) -> torch.Tensor:
        """Return a sequence, or its targets, with the masks of an epoch at the rate ``mask_prob``."""
        return MaskTokensDataset.__getitem_cached__.__wrapped__(self, self.seed, epoch, index)


class NumberedSequences(BaseWrapperDataset):
    """Dataset of masked sequences that tells the masks the update of a :class:`TrainingSequence`.

    Args:
        dataset: dataset of what a batch is made of, which reads the masked sequences.
        masked: the masked sequences: inputs and targets.
    """

    def __init__(self, dataset: FairseqDataset, masked: Sequence[VariableMasksDataset]):
        super().__init__(dataset)
        self.masked = masked

    def __getitem__(self, sequence: int | TrainingSequence) -> Any:
        index, updates = sequence if isinstance(sequence, TrainingSequence) else (sequence, None)
        for masked in self.masked:
            masked.updates = updates
        return self.dataset[index]


class DrawnByEpoch(BaseWrapperDataset):
    """Base of data sets that draw something for each sequence and ``epoch``."""

    def __init__(self, dataset: FairseqDataset):
        super().__init__(dataset)
        self.epoch = 0

    def set_epoch(self, epoch: int):
        super().set_epoch(epoch)
        self.epoch = epoch


class LossWeightsDataset(DrawnByEpoch):
    """Adds ``loss_weights`` [B] to every batch: one over the masking rate of each sequence.

    They are float64, because fairseq's trainer rounds float32 tensors of a batch to half precision.

    Args:
        dataset: dataset whose batches have ``id`` [B].
        rate: rate of the sequences.
    """

    def __init__(self, dataset: FairseqDataset, rate: RateRange):
        super().__init__(dataset)
        self.rate = rate

    def collater(self, samples: list) -> dict:
        batch = self.dataset.collater(samples)
        if batch:
            rates = [self.rate.of(self.epoch, sequence) for sequence in batch["id"].tolist()]
            batch["loss_weights"] = 1 / torch.tensor(rates, dtype=torch.float64)
        return batch
