"""Buckets of the relative position bias as in the published implementations, and its initial values."""

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from mae_lm_fairseq.core.config import RelativeBucketing
from mae_lm_fairseq.core.relative_position import (
    NEIGHBOUR_BIAS,
    RelativePositionBias,
    relative_position_bucket,
    symmetric_bucket,
)


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (64, 256), (8, 20)])
def test_buckets_equal_t5(buckets, max_distance):
    offsets = torch.arange(-600, 601)
    ours = relative_position_bucket(offsets, buckets, max_distance)
    theirs = T5Attention._relative_position_bucket(
        offsets, bidirectional=True, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(ours, theirs)
    assert set(ours.tolist()) == set(range(buckets)) - {buckets // 2}  # the bucket of offset "+0" stays empty


def test_neighbours_lean_to_close_offsets():
    bias = RelativePositionBias(buckets=32, max_distance=128, heads=4, max_positions=9, bucketing=RelativeBucketing.t5)
    torch.nn.init.zeros_(bias.weight)
    bias.lean_towards_neighbours()
    positions = torch.arange(9)[None]
    values = bias(positions, positions)[0]
    for head, offset in enumerate((-1, 1, -2, 2)):
        assert values[head, 4, 4 + offset].item() == NEIGHBOUR_BIAS
        assert values[head, 4].sum().item() == NEIGHBOUR_BIAS


def test_symmetric_buckets():
    offsets = torch.arange(-200, 201)
    buckets = symmetric_bucket(offsets, 16, 16)
    assert buckets.unique().tolist() == list(range(15))
    assert torch.equal(buckets + buckets.flip(0), torch.full_like(buckets, 14))
    # h = 8, e = 4: exact below 4, then 4 + ceil(log(n / 4) / log(15 / 4) * 3)
    expected = [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7]
    assert (buckets[200:216] - 7).tolist() == expected
