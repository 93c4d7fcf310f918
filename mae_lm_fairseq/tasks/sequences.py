"""Sequences before masking: long lines in parts, and repeated tokens."""

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset

MIN_SAMPLE_TOKENS = 4
"""Minimum of --tokens-per-sample: <s> and three tokens, so that no part has a single token."""


class SplitLongLinesDataset(BaseWrapperDataset):
    """Lines split into parts of ``max_tokens`` tokens and a remainder of at least two tokens.

    A remainder of one token would be a single end-of-line, which ``complete_doc`` treats as the end of a document and
    drops.

    Args:
        dataset: dataset of 1-D token tensors, with ``sizes``.
        max_tokens: maximum length of a part, at least 3.
    """

    def __init__(self, dataset: FairseqDataset, max_tokens: int):
        super().__init__(dataset)
        lengths = np.asarray(dataset.sizes, dtype=np.int64)
        pieces = np.maximum(1, -(-lengths // max_tokens))
        first_piece = np.cumsum(pieces) - pieces
        self._line = np.repeat(np.arange(len(lengths)), pieces)
        self._start = (np.arange(len(self._line)) - first_piece[self._line]) * max_tokens
        lone = (lengths[self._line] - self._start == 1) & (self._start > 0)
        self._start[lone] -= 1
        ends = np.append(self._start[1:], 0)
        last_piece = first_piece + pieces - 1
        ends[last_piece] = lengths
        self._sizes = ends - self._start

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self._start[index]
        return self.dataset[self._line[index]][start : start + self._sizes[index]]

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes


class RepeatedTokensDataset(BaseWrapperDataset):
    """Sequences with several copies of each token, side by side: repeated MLM, of ExLM's pilot (arXiv 2501.13397).

    Masking that follows draws positions, so it treats copies as independent tokens.

    Args:
        dataset: data set of 1-D token tensors, with ``sizes``.
        special: ids of ``<s>`` and ``</s>``, which are not repeated.
    """

    def __init__(self, dataset: FairseqDataset, times: int, special: list[int]):
        super().__init__(dataset)
        self.times, self.special = times, torch.tensor(special)

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = self.dataset[index]
        return tokens.repeat_interleave(torch.where(torch.isin(tokens, self.special), 1, self.times))

    @property
    def sizes(self) -> np.ndarray:
        """Upper bounds of the lengths: ``</s>`` counts as repeated."""
        return 1 + (self.dataset.sizes - 1) * self.times
