"""Attention backends: interchangeable implementations of the same attention.

A pattern, built once per batch and stack, says which queries attend to which keys and how attention is computed.

=======  =======================  ==============================  =======  ==============================
backend  runs on                  operates on                     dropout  position bias
=======  =======================  ==============================  =======  ==============================
eager    all devices              rows padded to the longest one  yes      float32; trainable
sdpa     all devices              rows padded to the longest one  yes      dtype of queries; trainable
flex     CUDA; CPU without        packed positions, no padding    no       float32; trainable
         gradients (slow)
=======  =======================  ==============================  =======  ==============================

Eager attention is the reference. Its results on a CPU are reproducible bit by bit.
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
"""Added to the attention scores of padding. The attention weight becomes exactly zero, and the value is finite in
half precision: a row without any key averages the zeros in its empty slots instead of producing NaN gradients."""
BIAS_ALIGNMENT = 8
"""Elements to a multiple of which PyTorch's memory-efficient kernel aligns the rows of a bias, whatever their dtype."""
FLEX_HEAD_SIZE = 16
"""Smallest size of an attention head that FlexAttention's kernels take."""
FLEX_BLOCK = 128
"""Block size of FlexAttention, in positions. A block is either computed or skipped as a unit."""


class AttentionBackend(str, Enum):
    """How attention is computed; ``auto`` is the fastest for the device with unchanged mathematics."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    flex = "flex"


class AttentionPattern(Protocol):
    """Pattern of attention: the keys that each query attends to; shared by the layers of a stack."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        """Apply scaled softmax attention with position bias.

        Args:
            q: [number of queries, heads, head size] packed.
            k, v: [number of keys, heads, head size] packed.
            dropout: applied to the attention weights.

        Returns:
            [number of queries, heads, head size] packed.
        """


class RowPattern(NamedTuple):
    """Attention in rows that are padded to the longest one."""

    queries: Layout
    keys: Layout
    bias: Tensor | None
    """float32, broadcastable to [B, heads, Q, K]. Added to the scores: position bias, and :data:`EMPTY_KEY` at
    padding. None if there is neither, which lets PyTorch choose a kernel that takes no bias."""
    mix: Callable[[Tensor, Tensor, Tensor, Tensor | None, nn.Module], Tensor]
    """Computes attention in rows from q, k, v, bias and dropout."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        q, k, v = _heads(q, self.queries), _heads(k, self.keys), _heads(v, self.keys)
        return from_rows(self.mix(q, k, v, self.bias, dropout).transpose(1, 2), self.queries)


def _eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: nn.Module) -> Tensor:
    """Compute attention step by step, as in the equations."""
    # Scale the queries, not the scores, so that the scores stay in the range of float16.
    scores = (q * q.shape[-1] ** -0.5 @ k.transpose(2, 3)).float()
    weights = torch.softmax(scores if bias is None else scores.add_(bias), dim=-1)
    return dropout(weights.to(v.dtype)) @ v


class SharedCast:
    """Fused attention whose layers share one copy of the bias in the precision of the products.

    PyTorch's kernels take the bias in the dtype of the queries and keep it for the backward pass; the one that takes a
    trained bias on GPUs also copies a bias whose rows are not aligned. The gradients of the layers are summed in the
    bias's own precision, float32.
    """

    def __init__(self):
        self.copies: dict[torch.dtype, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: nn.Module) -> Tensor:
        """Compute attention with PyTorch's fused kernels, which on GPUs do not hold the scores in memory."""
        p = dropout.p if dropout.training else 0.0
        if bias is not None and (q.dtype != bias.dtype or bias.stride(-2) % BIAS_ALIGNMENT):
            if q.dtype not in self.copies:
                self.copies[q.dtype] = _aligned(bias.detach(), q.dtype)
            bias = _Cast.apply(bias, self.copies[q.dtype])
        return F.scaled_dot_product_attention(q, k, v, bias, p)


def _aligned(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of the bias in ``dtype`` whose rows begin at multiples of :data:`BIAS_ALIGNMENT`."""
    width = bias.shape[-1]
    rows = bias.new_empty(*bias.shape[:-1], -(-width // BIAS_ALIGNMENT) * BIAS_ALIGNMENT, dtype=dtype)
    return rows[..., :width].copy_(bias)


class _Cast(torch.autograd.Function):
    """Cast with a given result."""

    @staticmethod
    def forward(ctx, x: Tensor, cast: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


class FlexPattern(NamedTuple):
    """FlexAttention over all packed positions; computes only blocks in which a query and a key share a row."""

    bias: Callable
    """The ``score_mod`` of FlexAttention: adds the position bias to a score."""
    block_mask: BlockMask

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: nn.Module) -> Tensor:
        if dropout.training and dropout.p:
            raise ValueError("the attention backend flex has no attention dropout")
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        attention = _compiled_flex_attention() if q.device.type == "cuda" else flex_attention
        mixed = attention(q, k, v, score_mod=self.bias, block_mask=self.block_mask)
        return mixed[0].transpose(0, 1)


def attention_pattern(
    queries: Layout, keys: Layout, position_bias: RelativePositionBias | None, backend: AttentionBackend
) -> AttentionPattern:
    """Return the pattern in which each of ``queries`` attends to all ``keys`` of its row."""
    if backend is AttentionBackend.flex:
        return FlexPattern(_flex_bias(queries, keys, position_bias), _flex_blocks(queries, keys))
    mix = SharedCast() if backend is AttentionBackend.sdpa else _eager
    return RowPattern(queries, keys, _row_bias(queries, keys, position_bias), mix)


def fastest_backend(device_type: str) -> AttentionBackend:
    """Return the backend that ``auto`` selects.

    On CPUs, eager attention with the dropout of this package was measured to be faster than SDPA.
    """
    return AttentionBackend.sdpa if device_type == "cuda" else AttentionBackend.eager


def _heads(x: Tensor, layout: Layout) -> Tensor:
    """Convert [N, heads, head size] to [B, heads, W, head size]."""
    return to_rows(x, layout).transpose(1, 2)


def _row_bias(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> Tensor | None:
    bias = None if position_bias is None else position_bias(queries.row_positions, keys.row_positions)
    if keys.is_full:
        return bias
    if bias is None:
        bias = torch.zeros(1, 1, 1, keys.width, device=keys.index.device)
    return bias.masked_fill(~keys.occupied()[:, None, None, :], EMPTY_KEY)


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
    """Return the blocks in which a query and a key share a row.

    For each block of queries, these are consecutive blocks of keys.
    """
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
