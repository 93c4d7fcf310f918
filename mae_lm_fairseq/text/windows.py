"""Windows of texts: sequences that a model is fine-tuned on and predicts for, and batches of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mae_lm_fairseq.text.tokenizer import PAD


class Windows(ABC):
    """Windows of texts.

    Attributes:
        windows: all windows.
        sizes: int[windows], tokens of each.
        order: numbers of the windows to train on, shuffled.
        counts: what the windows are made of, by name.
    """

    windows: Sequence[Any]
    sizes: np.ndarray
    order: np.ndarray
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.windows)

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample: its number as ``id``, ``tokens`` [T] int64, and what the task needs."""

    @abstractmethod
    def batch_targets(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the part of a batch that only the task has."""

    def batch(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch: ``src_tokens`` [B, T] int64, numbers of tokens and sequences, targets; {} for no samples."""
        if not samples:
            return {}
        tokens = [sample["tokens"] for sample in samples]
        lengths = torch.tensor([len(sequence) for sequence in tokens])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {"src_tokens": padded(tokens, PAD), "src_lengths": lengths},
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            **self.batch_targets(samples),
        }


def padded(sequences: Sequence[Tensor], value: int) -> Tensor:
    """Return sequences [T_i] as the rows of one tensor [B, T], padded on the right with a value."""
    return pad_sequence(list(sequences), batch_first=True, padding_value=value)
