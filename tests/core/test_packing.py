"""Conversions between padded batches, packed batches and rows, on a small hand-written batch."""

import pytest
import torch

from mae_lm_fairseq.core.packing import batch_layout, from_rows, indices_in, pack, renumbered, restore, to_rows, unpack

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


def test_sequence_is_everything_but_padding(layout):
    assert layout.sequence.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert layout.sequence.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert layout.sequence.lengths.tolist() == [5, 3, 0]
    assert layout.sequence.row_positions.tolist() == [[0, 1, 2, 3, 4]]


def test_visible_drops_masks_and_keeps_positions(layout):
    assert layout.visible.index.tolist() == [0, 1, 3, 4, 5, 7]
    assert layout.visible.positions.tolist() == [0, 1, 3, 4, 0, 2]
    assert layout.visible.slots.tolist() == [0, 1, 2, 3, 4, 5]
    assert layout.visible.row_positions.tolist() == [[0, 1, 3, 4], [0, 2, 0, 0], [0, 0, 0, 0]]
    assert layout.visible_in_sequence.tolist() == [0, 1, 3, 4, 5, 7]


def test_padding_is_never_predicted(layout):
    """fairseq's masked_lm asks for every position of a batch without targets."""
    everywhere = batch_layout(TOKENS, torch.ones_like(PREDICTED), pad=P, mask=M)
    assert everywhere.predicted.index.tolist() == everywhere.decoded.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert everywhere.predicted_in_sequence.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert everywhere.predicted.lengths.tolist() == [5, 3, 0]


def test_decoded_is_masked_or_predicted(layout):
    assert layout.predicted.index.tolist() == layout.predicted_in_sequence.tolist() == [2, 3, 6]
    assert layout.masked.index.tolist() == [2, 6]
    assert layout.decoded.index.tolist() == [2, 3, 6]
    assert indices_in(layout.masked, layout.decoded).tolist() == [0, 2]
    unpredicted = batch_layout(TOKENS, torch.zeros_like(PREDICTED), pad=P, mask=M)
    assert unpredicted.decoded.index.tolist() == [2, 6]


def test_early_masks_are_visible_and_masked():
    early = torch.zeros_like(PREDICTED)
    early[1, 1] = early[0, 3] = early[2, 0] = True  # a mask, a word and padding: only the first can be early
    layout = batch_layout(TOKENS, PREDICTED, pad=P, mask=M, early_masks=early)
    assert layout.visible.index.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert layout.early_in_visible.tolist() == [5]
    assert layout.masked.index.tolist() == [2, 6]


def test_renumbered_rows_count_from_zero(layout):
    numbered = renumbered(layout.visible)
    assert numbered.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert numbered.row_positions.tolist() == [[0, 1, 2, 3]]
    assert numbered.index is layout.visible.index


def test_rows_and_back(layout):
    packed = pack(TOKENS, layout.visible)
    assert packed.tolist() == [0, 5, 6, 2, 0, 2]
    rows = to_rows(packed, layout.visible)
    assert rows.tolist() == [[0, 5, 6, 2], [0, 2, 0, 0], [0, 0, 0, 0]]
    assert layout.visible.occupied().tolist() == [[True] * 4, [True, True, False, False], [False] * 4]
    assert from_rows(rows, layout.visible).tolist() == packed.tolist()
    assert unpack(packed, layout.visible, 5).tolist() == [[0, 5, 0, 6, 2], [0, 0, 2, 0, 0], [0, 0, 0, 0, 0]]


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
