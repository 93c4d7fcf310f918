"""Relative position bias, as in T5: a learned scalar per head and distance bucket, added to the attention scores."""

import math

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.config import RelativeBucketing

NEIGHBOURS = (-1, 1, -2, 2)
"""Offsets that the heads favour, in turn, with ``RelativeBiasInit.neighbours``."""
NEIGHBOUR_BIAS = 4.0
"""With 64 tokens, a head starts with about half of its attention on its neighbour: exp(4) against the 63 others."""


def relative_position_bucket(offset: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return T5's bidirectional bucket of each offset.

    As in Raffel et al. (2020, section 2.1) and the code of T5 and MPNet. Half of the buckets are for keys to the right
    of the query. In each half, the first half of the buckets holds one distance each. The other buckets grow
    logarithmically up to ``max_distance``; larger distances share the last bucket.

    Args:
        offset: int64 tensor, position of the key minus position of the query.
        buckets: number of buckets, a multiple of 4.
        max_distance: distance at which the logarithmic buckets end.
    """
    half = buckets // 2
    exact = half // 2
    distance = offset.abs()
    logarithm = torch.log(distance.clamp(min=1).float() / exact)
    growth = logarithm / math.log(max_distance / exact)
    far = exact + (growth * (half - exact)).long()
    bucket = torch.where(distance < exact, distance, far.clamp(max=half - 1))
    return bucket + half * (offset > 0)


def symmetric_bucket(offset: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each offset as the code of MAE-LM's authors (github.com/yumeng5/MAE-LM) computes it.

    Both directions have the same number of buckets, around the bucket of offset 0, so one bucket stays unused. With h =
    ``buckets`` / 2 and e = h / 2, a distance n below e has its own bucket; others grow logarithmically, rounded up, to
    the last bucket h - 1 at ``max_distance`` - 1. :func:`relative_position_bucket` describes the arguments.
    """
    last = buckets // 2 - 1
    exact = buckets // 4
    distance = offset.abs()
    logarithm = torch.log(distance.clamp(min=1).float() / exact)
    growth = logarithm / math.log((max_distance - 1) / exact)
    far = exact + torch.ceil(growth * (last - exact)).long()
    bucket = torch.where(distance < exact, distance, far.clamp(max=last))
    return bucket * offset.sign() + last


_BUCKETINGS = {RelativeBucketing.t5: relative_position_bucket, RelativeBucketing.symmetric: symmetric_bucket}


class RelativePositionBias(nn.Module):
    """Table of biases [buckets, heads], shared by all layers of a stack.

    Args:
        buckets, max_distance: see :func:`relative_position_bucket`.
        heads: number of attention heads.
        max_positions: number of positions; all positions are below it.
        bucketing: how distances are divided into buckets.
    """

    def __init__(self, buckets: int, max_distance: int, heads: int, max_positions: int, bucketing: RelativeBucketing):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.reach = max_positions - 1
        # Computed on the CPU, so that rounding at bucket boundaries is the same on every device.
        offsets = torch.arange(-self.reach, self.reach + 1, device="cpu")
        bucket = _BUCKETINGS[bucketing](offsets, buckets, max_distance)
        self.register_buffer("bucket", bucket, persistent=False)

    def lean_towards_neighbours(self):
        """Initialise every head so that it attends mostly to one close neighbour (:data:`NEIGHBOURS`).

        This initialisation is not from the papers. With theirs, attention starts as an average over the whole sequence,
        and a small model takes long to learn that neighbours matter.
        """
        heads = torch.arange(self.weight.shape[1])
        offsets = torch.tensor(NEIGHBOURS)[heads % len(NEIGHBOURS)]
        buckets = self.bucket[offsets + self.reach]
        with torch.no_grad():
            self.weight[buckets, heads] += NEIGHBOUR_BIAS

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of every query and key, in float32.

        Args:
            query_positions: [B, Q] int64, or [1, Q] if shared by all rows.
            key_positions: [B, K] int64, or [1, K].

        Returns:
            [B, heads, Q, K], with B = 1 if both inputs are shared by all rows.
        """
        offset = key_positions[:, None, :] - query_positions[:, :, None]
        by_offset = self.weight.float().index_select(0, self.bucket).T  # [heads, offsets]
        index = (offset + self.reach).flatten(1)  # [B, Q * K]
        # Gathered per head, because the gradient of an embedding lookup is 10 times slower on a CPU.
        by_offset = by_offset.expand(len(offset), -1, -1)
        index = index[:, None].expand(-1, by_offset.shape[1], -1)
        return by_offset.gather(2, index).unflatten(2, offset.shape[1:])
