"""The batches that every subject of a benchmark trains on, drawn once from a seed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mae_lm_fairseq.analysis.flops import Sample

BOS, PAD, EOS, UNK = range(4)
"""fairseq's special tokens. ``<mask>`` is the last id of the vocabulary."""
SEED = 1


@dataclass(frozen=True)
class Case:
    """One batch: its size, how much of it is masked, and whether its rows have different lengths."""

    length: int
    rows: int
    mask_prob: float = 0.15
    ragged: bool = False

    def __str__(self) -> str:
        return f"{self.rows} x {self.length}, {self.mask_prob:.0%}{' ragged' * self.ragged}"

    @property
    def file(self) -> str:
        """The name under which :func:`write_batch` keeps it."""
        return f"{self.length}x{self.rows}-{self.mask_prob}{'-ragged' * self.ragged}.npz"


@dataclass(frozen=True)
class Batch:
    """The text of a batch and what of it is masked; every subject gets it in the form that it wants."""

    tokens: np.ndarray
    """[B, T] int64, padded with ``<pad>``; what stands under the masks, too."""
    masked: np.ndarray
    """[B, T] bool."""

    @property
    def text_tokens(self) -> int:
        """All tokens of the text, masked ones too."""
        return int((self.tokens != PAD).sum())

    @property
    def predicted(self) -> int:
        return int(self.masked.sum())

    def samples(self) -> list[Sample]:
        """The sizes of its rows."""
        lengths, masked = (self.tokens != PAD).sum(1), self.masked.sum(1)
        return [
            Sample(int(length), int(length - hidden), int(hidden))
            for length, hidden in zip(lengths, masked, strict=True)
        ]


def draw_batch(case: Case, vocab_size: int) -> Batch:
    """Random tokens between ``<s>`` and ``</s>``; the same share of each row is masked."""
    generator = np.random.default_rng(SEED)
    lengths = _ragged_lengths(case, generator) if case.ragged else np.full(case.rows, case.length)
    shape = (case.rows, lengths.max())
    tokens, masked = np.full(shape, PAD, dtype=np.int64), np.zeros(shape, dtype=bool)
    for row, length in enumerate(lengths):
        tokens[row, :length] = generator.integers(UNK + 1, vocab_size - 1, length)
        tokens[row, 0], tokens[row, length - 1] = BOS, EOS
        chosen = generator.choice(np.arange(1, length - 1), round(case.mask_prob * length), replace=False)
        masked[row, chosen] = True
    return Batch(tokens, masked)


def _ragged_lengths(case: Case, generator: np.random.Generator) -> np.ndarray:
    """Lengths of samples as ``complete_doc`` makes them: whole lines of one document until no more fits.

    Lines take an eighth of a sample on average and documents sixteen lines. Samples are taken in random order;
    fairseq sorts its own by length, so that a batch of real data is less ragged than this one.
    """
    lengths = []
    while len(lengths) < 64 * case.rows:
        size = 1  # <s>
        for line in generator.integers(2, case.length // 4, generator.geometric(1 / 16)):
            if size + line > case.length:
                lengths.append(size)
                size = 1
            size += line
        lengths.append(size)
    chosen = generator.choice(lengths, case.rows, replace=False)
    return np.maximum(chosen, 8)


def write_batch(directory: Path, case: Case, batch: Batch) -> None:
    """Keep a batch for the subjects' processes."""
    np.savez(directory / case.file, tokens=batch.tokens, masked=batch.masked)
