"""Conversions between padded and packed batches, on a small hand-written batch.

The layouts themselves are those of the plain implementation in test_autoencoder.py.
"""

import pytest
import torch

from mae_lm_fairseq.core.expansion import expand
from mae_lm_fairseq.core.packing import batch_layout, pack, renumbered, restore, to_rows, unpack

P, M = 1, 9
TOKENS = torch.tensor(
    [
        [0, 5, M, 6, 2],
        [0, M, 2, P, P],
        [P, P, P, P, P],
    ]
)
PREDICTED = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.fixture
def layout():
    return batch_layout(TOKENS, PREDICTED, pad=P, mask=M)


def test_padding_is_never_predicted(layout):
    """fairseq's masked_lm asks for every position of a batch without targets."""
    everywhere = batch_layout(TOKENS, torch.ones_like(PREDICTED), pad=P, mask=M)
    assert everywhere.predicted.index.tolist() == everywhere.decoded.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert everywhere.predicted_in_sequence.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert everywhere.predicted.lengths.tolist() == [5, 3, 0]


def test_packed_positions_return_to_their_places(layout):
    packed = pack(TOKENS, layout.visible)
    assert packed.tolist() == [0, 5, 6, 2, 0, 2]
    assert unpack(packed, layout.visible, 5).tolist() == [[0, 5, 0, 6, 2], [0, 0, 2, 0, 0], [0, 0, 0, 0, 0]]


def test_unpacking_takes_the_first_of_several_states(layout):
    states = expand(layout.sequence, layout.masked, 3).layout
    unpacked = unpack(torch.arange(1, 13), states, 5)
    assert unpacked.tolist() == [[1, 2, 3, 6, 7], [8, 9, 12, 0, 0], [0] * 5]
    assert torch.equal(pack(unpacked, states)[states.first], states.first + 1)


def test_full_rows_are_a_view():
    tokens = torch.tensor([[0, 5, 2], [0, 6, 2]])
    layout = batch_layout(tokens, torch.zeros_like(tokens, dtype=torch.bool), pad=P, mask=M)
    states = torch.randn(6, 4)
    assert layout.sequence.is_full
    assert to_rows(states, layout.sequence).data_ptr() == states.data_ptr()


def test_left_padding_does_not_count_as_position():
    tokens = torch.tensor([[P, P, 0, 5, 2]])
    layout = batch_layout(tokens, tokens.ne(P), pad=P, mask=M)
    assert layout.sequence.positions.tolist() == [0, 1, 2]


def test_restore_converts_plain_tuples_to_named_tuples(layout):
    def plain(value):
        return tuple(map(plain, value)) if isinstance(value, tuple) else value

    restored = restore(plain(layout))
    assert type(restored) is type(layout)
    assert restored.predicted.index.tolist() == [2, 3, 6]
    assert restored.visible.width == 4


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (2, 0)])
def test_empty_batches(shape):
    tokens = torch.zeros(shape, dtype=torch.int64)
    layout = batch_layout(tokens, tokens.ne(P), pad=P, mask=M)
    assert layout.sequence.index.numel() == 0
    assert renumbered(layout.visible).positions.numel() == 0
    assert to_rows(torch.zeros(0, 3), layout.sequence).shape == (shape[0], 0, 3)
