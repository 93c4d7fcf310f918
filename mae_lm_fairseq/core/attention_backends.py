"""Attention backends: interchangeable implementations of the same attention.

A pattern, built once per batch and stack, says which queries attend to which keys and how attention is computed.

=======  ==============================  ============================
backend  operates on                     position bias
=======  ==============================  ============================
eager    rows padded to the longest one  float32
sdpa     rows padded to the longest one  dtype of queries
fused    packed positions, no padding    float32, never held in full
=======  ==============================  ============================

All have dropout of the attention weights and a trainable bias, and run on all devices. Eager attention is the
reference; its results on a CPU are reproducible bit by bit.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.kernels.operator import PositionBias, Rows, attend, split
from mae_lm_fairseq.core.packing import Layout, from_rows, to_rows
from mae_lm_fairseq.core.relative_position import RelativePositionBias

EMPTY_KEY = -3e4
"""Added to the attention scores of padding. The attention weight becomes exactly zero, and the value is finite in
half precision: a row without any key averages the zeros in its empty slots instead of producing NaN gradients."""
BIAS_ALIGNMENT = 8
"""Elements to a multiple of which PyTorch's memory-efficient kernel aligns the rows of a bias, whatever their dtype."""


class AttentionBackend(str, Enum):
    """How attention is computed; ``auto`` is the fastest for the device with unchanged mathematics."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    fused = "fused"


class AttentionPattern(Protocol):
    """Pattern of attention: the keys that each query attends to; shared by the layers of a stack."""

    def attend(self, packed: Tensor, queries: Tensor | None, dropout: nn.Module) -> Tensor:
        """Apply scaled softmax attention with position bias.

        Args:
            packed: [N, 3, heads, head size] queries, keys and values; with ``queries``, [N, 2, heads, head size] keys
                and values.
            queries: [number of queries, heads, head size]; None if they are in ``packed``.
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

    def attend(self, packed: Tensor, queries: Tensor | None, dropout: nn.Module) -> Tensor:
        q, k, v = split(packed, queries)
        q = to_rows(q, self.queries).transpose(1, 2)
        k = to_rows(k, self.keys).transpose(1, 2)
        v = to_rows(v, self.keys).transpose(1, 2)
        mixed = self.mix(q, k, v, self.bias, dropout)
        return from_rows(mixed.transpose(1, 2), self.queries)


def _eager(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: nn.Module) -> Tensor:
    """Compute attention step by step, as in the equations."""
    # Scale the queries, not the scores, so that the scores stay in the range of float16.
    scale = q.shape[-1] ** -0.5
    scores = (q * scale @ k.transpose(2, 3)).float()
    if bias is not None:
        scores.add_(bias)
    weights = torch.softmax(scores, dim=-1)
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
        if bias is not None:
            bias = self._as_taken(bias, q.dtype)
        return F.scaled_dot_product_attention(q, k, v, bias, _probability(dropout))

    def _as_taken(self, bias: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the bias in a dtype, with aligned rows."""
        is_aligned = bias.stride(-2) % BIAS_ALIGNMENT == 0
        if bias.dtype == dtype and is_aligned:
            return bias
        if dtype not in self.copies:
            self.copies[dtype] = _aligned(bias.detach(), dtype)
        return _Cast.apply(bias, self.copies[dtype])


def _probability(dropout: nn.Module) -> float:
    return dropout.p if dropout.training else 0.0


def _aligned(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of the bias in ``dtype`` whose rows begin at multiples of :data:`BIAS_ALIGNMENT`."""
    *shape, width = bias.shape
    aligned_width = -(-width // BIAS_ALIGNMENT) * BIAS_ALIGNMENT
    rows = bias.new_empty(*shape, aligned_width, dtype=dtype)
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


class FusedPattern(NamedTuple):
    """Attention over packed positions in an operator of our own, :mod:`~mae_lm_fairseq.core.kernels.operator`."""

    rows: Rows
    bias: PositionBias | None

    def attend(self, packed: Tensor, queries: Tensor | None, dropout: nn.Module) -> Tensor:
        return attend(packed, queries, self.rows, self.bias, _probability(dropout))


def attention_pattern(
    queries: Layout, keys: Layout, position_bias: RelativePositionBias | None, backend: AttentionBackend
) -> AttentionPattern:
    """Return the pattern in which each of ``queries`` attends to all ``keys`` of its row."""
    if backend is AttentionBackend.fused:
        return _fused_pattern(queries, keys, position_bias)
    mix = SharedCast() if backend is AttentionBackend.sdpa else _eager
    return RowPattern(queries, keys, _row_bias(queries, keys, position_bias), mix)


def fastest_backend(device: torch.device, training: bool) -> AttentionBackend:
    """Return the backend that ``auto`` selects.

    On CPUs, eager attention with the dropout of this package was measured to be faster than SDPA; on an H100, training
    with the fused kernel was.
    """
    if device.type != "cuda":
        return AttentionBackend.eager
    return AttentionBackend.fused if training and problem_of_fused(device) is None else AttentionBackend.sdpa


def problem_of_fused(device: torch.device) -> str | None:
    """Return why the fused kernel does not train on a device, and what to do about it; None if it does."""
    if device.type != "cuda":
        return None
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return "needs an NVIDIA GPU of compute capability 8.0 or newer; use sdpa"
    try:
        from mae_lm_fairseq.core.kernels import fused_attention  # noqa: F401  registers the kernels
    except ImportError:
        return "needs triton 3.4 or newer: pip install 'mae_lm_fairseq[kernels]', or use sdpa"
    return None


def _row_bias(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> Tensor | None:
    bias = None
    if position_bias is not None:
        bias = position_bias(queries.row_positions, keys.row_positions)
    if keys.is_full:
        return bias
    if bias is None:
        bias = torch.zeros(1, 1, 1, keys.width, device=keys.index.device)
    is_empty = ~keys.occupied()
    return bias.masked_fill(is_empty[:, None, None, :], EMPTY_KEY)


def _fused_pattern(queries: Layout, keys: Layout, position_bias: RelativePositionBias | None) -> FusedPattern:
    rows = Rows(
        query_starts=_starts(queries),
        key_starts=_starts(keys),
        query_positions=queries.positions,
        key_positions=keys.positions,
        most_queries=queries.width,
        most_keys=keys.width,
    )
    if position_bias is None:
        return FusedPattern(rows, None)
    table = position_bias.weight.float()  # so that the gradients of the layers are summed in float32
    return FusedPattern(rows, PositionBias.of(table, position_bias.bucket, rows))


def _starts(layout: Layout) -> Tensor:
    """Return the index of the first position of each row, and the number of positions, [B + 1] int32."""
    return F.pad(layout.lengths.cumsum(0), (1, 0)).int()
