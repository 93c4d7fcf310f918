"""T5 relative position bias: buckets as in the published implementations, values by hand, gradients of the table."""

import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
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


def test_buckets_equal_mpnet():
    offsets = torch.arange(-511, 512)
    theirs = MPNetEncoder.relative_position_bucket(offsets, num_buckets=32, max_distance=128)
    assert torch.equal(relative_position_bucket(offsets, 32, 128), theirs)


def test_bias_is_the_table_entry_of_each_pair_and_head():
    bias = RelativePositionBias(buckets=8, max_distance=20, heads=2, max_positions=16, bucketing=RelativeBucketing.t5)
    torch.nn.init.normal_(bias.weight)
    queries, keys = torch.tensor([[3, 0], [5, 9]]), torch.tensor([[0, 3, 4], [9, 1, 5]])
    values = bias(queries, keys)
    assert values.shape == (2, 2, 2, 3)
    for row in range(2):
        for q in range(2):
            for k in range(3):
                bucket = relative_position_bucket(keys[row, k] - queries[row, q], 8, 20)
                assert torch.equal(values[row, :, q, k], bias.weight[bucket])


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
