"""Training batches for benchmarks, drawn from a fixed seed and shared by all subjects."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mae_lm_fairseq.cost.flops import Sample

BOS, PAD, EOS, UNK = range(4)
"""fairseq's special tokens. ``<mask>`` is the last id of the vocabulary."""
SEED = 1


@dataclass(frozen=True)
class Case:
    """Description of a batch: its size, masking rate, and whether its rows have different lengths."""

    length: int
    rows: int
    mask_prob: float = 0.15
    ragged: bool = False

    def __str__(self) -> str:
        return f"{self.rows} x {self.length}, {self.mask_prob:.0%}{' ragged' * self.ragged}"

    @property
    def file(self) -> str:
        """Name of the file that :func:`write_batch` writes."""
        return f"{self.length}x{self.rows}-{self.mask_prob}{'-ragged' * self.ragged}.npz"


@dataclass(frozen=True)
class Batch:
    """Tokens and masks of a batch, which each subject converts to its own format."""

    tokens: np.ndarray
    """[B, T] int64, padded with ``<pad>``; the original tokens, also at masked positions."""
    masked: np.ndarray
    """[B, T] bool."""

    @property
    def text_tokens(self) -> int:
        """Number of tokens of the text, masked ones included."""
        return int((self.tokens != PAD).sum())

    @property
    def predicted(self) -> int:
        return int(self.masked.sum())

    def samples(self) -> list[Sample]:
        """Return the numbers of positions of each row."""
        lengths, masked = (self.tokens != PAD).sum(1), self.masked.sum(1)
        return [
            Sample(int(length), int(length - hidden), int(hidden))
            for length, hidden in zip(lengths, masked, strict=True)
        ]


def draw_batch(case: Case, vocab_size: int) -> Batch:
    """Draw random tokens between ``<s>`` and ``</s>``, with the same masking rate in each row."""
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
    """Draw sequence lengths as in ``complete_doc`` mode: complete lines of one document as long as they fit.

    On average, lines fill an eighth of a sequence and documents have sixteen lines. Sequences are in random order;
    fairseq sorts by length, so that real batches are less ragged than these.
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
    """Write a batch for the subjects' processes."""
    np.savez(directory / case.file, tokens=batch.tokens, masked=batch.masked)
