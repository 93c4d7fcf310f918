"""Multi-head attention over packed positions."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import Dropout
from .packing import Layout, from_rows, to_rows
from .relative_position import RelativePositionBias


class AttentionPattern(NamedTuple):
    """Who attends to whom: computed once per batch and shared by the layers of a stack."""

    queries: Layout
    keys: Layout
    bias: Tensor
    """float32, broadcast to [B, heads, Q, K] and added to the scores: position bias, a very low value at empty keys."""


def attention_pattern(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> AttentionPattern:
    """The pattern in which each of ``queries`` attends to all ``keys`` of its row."""
    if position_bias is None:
        bias = torch.zeros(1, 1, 1, keys.width, device=keys.index.device)
    else:
        bias = position_bias(queries.row_positions, keys.row_positions)
    if not keys.is_full:
        # Finite, so that a row without any key gives an average (which nobody reads) and no NaN in the gradients.
        bias = bias.masked_fill(~keys.occupied()[:, None, None, :], torch.finfo(bias.dtype).min)
    return AttentionPattern(queries, keys, bias)


class MultiheadAttention(nn.Module):
    """Scaled dot-product attention (Vaswani et al., 2017) with one matrix for queries, keys and values."""

    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.qkv_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, pattern: AttentionPattern, queries: Tensor | None = None) -> Tensor:
        """What the queries gather from the states.

        Args:
            states: [number of keys, dim] packed.
            pattern: of queries and keys.
            queries: [number of queries, dim] packed; all of ``states`` where it is None.

        Returns:
            [number of queries, dim] packed.
        """
        q, k, v = self._project(states, queries)
        # Scaled first, so that the scores stay in the range of float16.
        q = self._split_heads(q * (self.dim // self.heads) ** -0.5, pattern.queries)
        k = self._split_heads(k, pattern.keys)
        v = self._split_heads(v, pattern.keys)
        weights = torch.softmax((q @ k.transpose(2, 3)).float() + pattern.bias, dim=-1)
        mixed = self.dropout(weights).to(v.dtype) @ v
        return self.out_proj(from_rows(mixed.transpose(1, 2), pattern.queries).flatten(1))

    def _project(self, states: Tensor, queries: Tensor | None) -> tuple[Tensor, ...]:
        if queries is None:
            return self.qkv_proj(states).chunk(3, dim=-1)
        q_weight, kv_weight = self.qkv_proj.weight.split([self.dim, 2 * self.dim])
        q_bias, kv_bias = self.qkv_proj.bias.split([self.dim, 2 * self.dim])
        return F.linear(queries, q_weight, q_bias), *F.linear(states, kv_weight, kv_bias).chunk(2, dim=-1)

    def _split_heads(self, x: Tensor, layout: Layout) -> Tensor:
        """[N, dim] -> [B, heads, W, dim / heads]."""
        return to_rows(x, layout).unflatten(-1, (self.heads, -1)).transpose(1, 2)
