"""Layouts with several states for some positions, on a small hand-written batch."""

import torch

from mae_lm_fairseq.core.expansion import CloneEmbedding, expand, expand_part
from mae_lm_fairseq.core.packing import batch_layout, pack, to_rows, unpack

P, M = 1, 9
TOKENS = torch.tensor([[0, 5, M, 6, 2], [0, M, M, P, P], [P, P, P, P, P], [7, 2, P, P, P]])
PREDICTED = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0], [0] * 5, [0] * 5], dtype=torch.bool)
LAYOUT = batch_layout(TOKENS, PREDICTED, pad=P, mask=M)


def test_every_mask_has_as_many_states_as_clones():
    found = expand(LAYOUT.sequence, LAYOUT.masked, 3)
    assert found.source.tolist() == [0, 1, 2, 2, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 8, 9]
    assert found.clone.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 1, 2, 3, 0, 0]
    layout = found.layout
    assert layout.index.tolist() == [0, 1, 2, 2, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7, 15, 16]
    assert layout.positions.tolist() == [0, 1, 2, 2, 2, 3, 4, 0, 1, 1, 1, 2, 2, 2, 0, 1]
    assert layout.lengths.tolist() == [7, 7, 0, 2]
    assert layout.first.tolist() == [0, 1, 2, 5, 6, 7, 8, 11, 14, 15]
    assert layout.width == 5 + 2 * 2  # at least the longest row
    assert layout.row_positions[0].tolist() == [0, 1, 2, 2, 2, 3, 4, 0, 0]
    assert torch.equal(to_rows(layout.positions, layout), layout.row_positions)
    assert torch.equal(layout.occupied().sum(1), layout.lengths)


def test_one_clone_changes_nothing():
    layout = expand(LAYOUT.sequence, LAYOUT.masked, 1).layout
    for name in ("index", "positions", "slots", "lengths", "width"):
        assert torch.equal(torch.as_tensor(getattr(layout, name)), torch.as_tensor(getattr(LAYOUT.sequence, name))), (
            name
        )


def test_states_of_a_part():
    own, expansion, found = expand_part(LAYOUT.decoded, LAYOUT.sequence, LAYOUT.masked, 3)
    assert found.tolist() == [2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
    assert torch.equal(own.layout.index, expansion.layout.index[found])


def test_a_clone_embedding_is_added_to_the_states_of_masks_only():
    embed = CloneEmbedding(3, 2)
    torch.nn.init.normal_(embed.weight)
    states = torch.randn(10, 2)
    expansion = expand(LAYOUT.sequence, LAYOUT.masked, 3)
    found = embed(states, expansion)
    assert torch.equal(found[[0, 1, 5, 6, 7, 14, 15]], states[[0, 1, 3, 4, 5, 8, 9]])
    assert torch.equal(found[8:11], states[6] + embed.weight)


def test_unpacking_takes_the_first_state():
    layout = expand(LAYOUT.sequence, LAYOUT.masked, 3).layout
    found = unpack(torch.arange(1, 17), layout, 5)
    assert found[:2].tolist() == [[1, 2, 3, 6, 7], [8, 9, 12, 0, 0]]
    assert torch.equal(pack(found, layout)[layout.first], layout.first + 1)
