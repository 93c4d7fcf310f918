"""Ways to compute the same attention. A pattern, made once per batch and stack, says who attends to whom and how.

=======  =======================  ==============================  =======  ==============================
backend  where                    sees                            dropout  bias
=======  =======================  ==============================  =======  ==============================
eager    everywhere               rows padded to the longest one  yes      float32; trained
sdpa     everywhere               rows padded to the longest one  yes      products' precision; trained
flex     CUDA; on CPUs without    packed positions, no padding    no       float32; trained
         gradients, and slow
=======  =======================  ==============================  =======  ==============================

Eager attention is the reference, and gives bit-equal reruns on a CPU.
"""

import functools
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from mae_lm_fairseq.core.packing import Layout, from_rows, to_rows
from mae_lm_fairseq.core.relative_position import RelativePositionBias

EMPTY_KEY = -3e4
"""Added to the scores of padding: its weight is exactly zero, and half precision holds it as a finite number, so that
a row without any key gives the average of the zeros in its empty slots, which is zero, and no NaN in the gradients."""
FLEX_BLOCK = 128
"""Positions that FlexAttention skips or computes together."""


class AttentionBackend(str, Enum):
    """The choices of a user; ``auto`` takes the fastest for the device that changes no mathematics."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    flex = "flex"


class AttentionPattern(Protocol):
    """Who attends to whom, shared by the layers of a stack."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        """Softmax of scores and bias, applied to the values.

        Args:
            q: [number of queries, heads, head size] packed and scaled.
            k, v: [number of keys, heads, head size] packed.
            dropout: for the attention weights.

        Returns:
            [number of queries, heads, head size] packed.
        """


class RowPattern(NamedTuple):
    """Attention in rows, padded to the longest."""

    queries: Layout
    keys: Layout
    bias: Tensor
    """float32, broadcast to [B, heads, Q, K] and added to the scores: position bias, :data:`EMPTY_KEY` at padding."""
    mix: Callable[[Tensor, Tensor, Tensor, Tensor, nn.Module], Tensor]
    """From q, k, v, bias and dropout, in rows, to the weighted values."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        q, k, v = _heads(q, self.queries), _heads(k, self.keys), _heads(v, self.keys)
        return from_rows(self.mix(q, k, v, self.bias, dropout).transpose(1, 2), self.queries)


def _eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: nn.Module) -> Tensor:
    """Attention as it is written down."""
    weights = torch.softmax((q @ k.transpose(2, 3)).float().add_(bias), dim=-1)
    return dropout(weights.to(v.dtype)) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: nn.Module) -> Tensor:
    """On a GPU the scores never stand in memory."""
    p = dropout.p if dropout.training else 0.0
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), p, scale=1.0)


class FlexPattern(NamedTuple):
    """FlexAttention over all rows at once: only blocks of queries and keys that share a row are computed."""

    bias: Callable
    """From score, batch, head, query and key to the biased score."""
    block_mask: BlockMask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        if dropout.training and dropout.p:
            raise ValueError("the attention backend flex has no attention dropout")
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        attention = _compiled_flex_attention() if q.device.type == "cuda" else flex_attention
        mixed = attention(q, k, v, score_mod=self.bias, block_mask=self.block_mask, scale=1.0)
        return mixed[0].transpose(0, 1)


def attention_pattern(
    queries: Layout, keys: Layout, position_bias: RelativePositionBias | None, backend: AttentionBackend
) -> AttentionPattern:
    """The pattern in which each of ``queries`` attends to all ``keys`` of its row."""
    if backend is AttentionBackend.flex:
        return FlexPattern(_flex_bias(queries, keys, position_bias), _flex_blocks(queries, keys))
    mix = _sdpa if backend is AttentionBackend.sdpa else _eager
    return RowPattern(queries, keys, _row_bias(queries, keys, position_bias), mix)


def fastest_backend(device_type: str) -> AttentionBackend:
    """What ``auto`` stands for. On CPUs eager attention with its cheap dropout was measured to be faster than SDPA."""
    return AttentionBackend.sdpa if device_type == "cuda" else AttentionBackend.eager


def _heads(x: Tensor, layout: Layout) -> Tensor:
    """[N, heads, head size] -> [B, heads, W, head size]."""
    return to_rows(x, layout).transpose(1, 2)


def _row_bias(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> Tensor:
    if position_bias is None:
        bias = torch.zeros(1, 1, 1, keys.width, device=keys.index.device)
    else:
        bias = position_bias(queries.row_positions, keys.row_positions)
    if not keys.is_full:
        bias = bias.masked_fill(~keys.occupied()[:, None, None, :], EMPTY_KEY)
    return bias


@functools.cache
def _compiled_flex_attention() -> Callable:
    return torch.compile(flex_attention, dynamic=True)


def _flex_bias(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> Callable:
    if position_bias is None:
        return lambda score, batch, head, query, key: score
    by_offset, reach = position_bias.by_offset(), position_bias.reach
    here, there = queries.positions, keys.positions
    return lambda score, batch, head, query, key: score + by_offset[there[key] - here[query] + reach, head]


def _flex_blocks(queries: Layout, keys: Layout) -> BlockMask:
    """The blocks in which some query and some key share a row: one run of blocks of keys for each block of queries."""
    query_rows, key_rows = queries.packed_rows(), keys.packed_rows()
    key_ends = keys.lengths.cumsum(0)
    first = query_rows[::FLEX_BLOCK]
    last = torch.cat([query_rows[FLEX_BLOCK - 1 :: FLEX_BLOCK], query_rows[-1:]])[: len(first)]
    start = (key_ends - keys.lengths)[first] // FLEX_BLOCK
    end = -(-key_ends[last] // FLEX_BLOCK)
    blocks = -(-keys.index.numel() // FLEX_BLOCK)
    run = start[:, None] + torch.arange(blocks, device=start.device)
    return BlockMask.from_kv_blocks(
        (end - start)[None, None].int(),
        run.clamp(max=blocks - 1)[None, None].int(),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=lambda batch, head, query, key: query_rows[query] == key_rows[key],
        seq_lengths=(queries.index.numel(), keys.index.numel()),
    )
