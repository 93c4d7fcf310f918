"""Windows of texts as sequences: the parts that all tasks with windows share."""

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils

from mae_lm_fairseq.text.tokenizer import PAD


class WindowDataset(FairseqDataset):
    """Windows of texts.

    Attributes:
        windows: all windows.
        sizes: int[windows], tokens of each.
        order: numbers of the windows to train on, shuffled.
        counts: what the windows are made of, by name.
    """

    def __len__(self) -> int:
        return len(self.windows)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        return self.order


def collate_inputs(samples: list[dict]) -> dict:
    """Return the part of a batch without targets: ``src_tokens`` [B, T] int64, and numbers of tokens and sequences."""
    tokens = [sample["tokens"] for sample in samples]
    lengths = torch.tensor([len(each) for each in tokens])
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "net_input": {"src_tokens": data_utils.collate_tokens(tokens, PAD), "src_lengths": lengths},
        "nsentences": len(samples),
        "ntokens": int(lengths.sum()),
    }
