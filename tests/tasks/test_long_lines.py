"""Splitting of lines that are longer than a sequence, without loss of tokens."""

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset
from hypothesis import given, strategies as st

from mae_lm_fairseq.tasks.sequences import SplitLongLinesDataset

EOS = 2


class Lines(BaseWrapperDataset):
    def __init__(self, lengths):
        super().__init__([])
        numbers = iter(range(10, 10 + sum(lengths)))
        self.items = [torch.tensor([next(numbers) for _ in range(n)]) for n in lengths]

    def __getitem__(self, index):
        return self.items[index]

    def __len__(self):
        return len(self.items)

    @property
    def sizes(self):
        return np.array([len(item) for item in self.items])


def pieces(dataset):
    return [dataset[i].tolist() for i in range(len(dataset))]


def test_by_hand():
    split = SplitLongLinesDataset(Lines([2, 7, 3, 4, 1]), max_tokens=3)
    assert pieces(split) == [[10, 11], [12, 13, 14], [15, 16], [17, 18], [19, 20, 21], [22, 23], [24, 25], [26]]
    assert split.sizes.tolist() == [2, 3, 2, 2, 3, 2, 2, 1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(3, 12))
def test_same_tokens_in_order_no_piece_too_long_and_none_of_one_token(lengths, max_tokens):
    lines = Lines(lengths)
    split = SplitLongLinesDataset(lines, max_tokens)
    parts = pieces(split)
    assert [token for part in parts for token in part] == torch.cat(lines.items).tolist()
    assert [len(part) for part in parts] == split.sizes.tolist()
    assert max(split.sizes) <= max_tokens
    assert (split.sizes == 1).sum() == lengths.count(1)
