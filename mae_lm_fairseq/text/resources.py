"""Estimate of the disk space and memory that a preparation and its data-bins take."""

import numpy as np

from mae_lm_fairseq.text.corpus import Reading, read_piece
from mae_lm_fairseq.text.data_bin import token_type
from mae_lm_fairseq.text.parts import Part
from mae_lm_fairseq.text.tokenizer import Tokenizer

_PROBES, _PROBE_BYTES = 8, 1 << 16
_INDEX_BYTES = 12
_WORKER_BYTES = 120_000_000
"""Of a process that encodes. Measured: 68 to 80 MB with 8,000 subwords (docs/results/speed.md)."""
_TRAINING_BYTES = 85
"""Of a line in the memory of a training process. Measured: 84 (400,000 lines of 58 tokens, samples of 128 tokens)."""


def estimate(parts: list[Part], tokenizer: Tokenizer, reading: Reading, data_bins: int) -> str:
    """Return a sentence about the disk space and memory for the training text.

    Args:
        parts: parts of the training text, of which a few are probed.
        tokenizer: encodes the text.
        reading: how records are read.
        data_bins: number of data-bins.
    """
    text = lines = tokens = 0
    for part in parts[:: max(1, len(parts) // _PROBES)]:
        for chunk in read_piece(part.pieces[0], reading, _PROBE_BYTES):
            sizes = tokenizer.encode_block(chunk.lines())[1]
            text, lines, tokens = text + len(chunk.data), lines + len(sizes), tokens + int(np.sum(sizes))
            break
    scale = sum(part.size for part in parts) / max(text, 1)
    disk = scale * (tokens * token_type(len(tokenizer.symbols)).itemsize + lines * _INDEX_BYTES)
    memory = scale * lines * _TRAINING_BYTES / data_bins
    return (
        f"estimate: {_size(2 * disk)} of disk while preparing, {_size(disk)} afterwards; "
        f"{_size(_WORKER_BYTES)} of memory per worker; in training, about {_size(memory)} "
        "of memory per process for the index of a data-bin, whose tokens stay on disk"
    )


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
