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
        parts = np.maximum(1, -(-lengths // max_tokens))
        first_part = np.cumsum(parts) - parts
        lines = np.repeat(np.arange(len(lengths)), parts)
        number_in_line = np.arange(len(lines)) - first_part[lines]

        starts = number_in_line * max_tokens
        is_lone_token = (lengths[lines] - starts == 1) & (starts > 0)
        starts[is_lone_token] -= 1
        ends = np.append(starts[1:], 0)
        last_part = first_part + parts - 1
        ends[last_part] = lengths

        self._line = lines
        self._start = starts
        self._sizes = ends - starts

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
        self.times = times
        self.special = torch.tensor(special)

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = self.dataset[index]
        copies = torch.where(torch.isin(tokens, self.special), 1, self.times)
        return tokens.repeat_interleave(copies)

    @property
    def sizes(self) -> np.ndarray:
        """Upper bounds of the lengths: ``</s>`` counts as repeated."""
        return 1 + (self.dataset.sizes - 1) * self.times
