"""Exact attention in one kernel: packed rows of any length, a trained position bias, dropout; in Triton.

The equations are those of FlashAttention (Dao et al., 2022, arXiv 2205.14135, algorithms 2 and 4; Dao, 2023, arXiv
2307.08691), with a position bias. For query i and key j of a row, at positions t_i and t_j, of a head::

    S_ij = scale Q_i K_j + B(t_j - t_i)      L_i = log sum_j exp S_ij         P_ij = exp(S_ij - L_i)
    O_i  = sum_j Z_ij P_ij V_j               Z_ij = 0 with probability p_drop, and 1 / (1 - p_drop) otherwise

    dV_j = sum_i Z_ij P_ij dO_i              dP_ij = Z_ij dO_i V_j            D_i = dO_i O_i
    dS_ij = P_ij (dP_ij - D_i)               dQ_i = scale sum_j dS_ij K_j     dK_j = scale sum_i dS_ij Q_i
    dB(b) = sum of dS_ij over the pairs whose offset t_j - t_i is in bucket b

S, P, Z and B exist only in tiles of BLOCK_Q queries and BLOCK_K keys. Z is a hash of the key's number and of a random
number that each query has in each head, so that the backward pass draws it again. Exponentials are powers of two, whose
exponents are log2(e) times those above; L is a logarithm to base two. P and dS are rounded to the dtype of Q before
they are multiplied, and dS before it is summed to dB. No kernel uses atomic operations, so that equal inputs give
equal bits.

A *run* is a sequence of offsets with the same bucket. The keys of a query whose offset is in one run follow each other,
so that dB is a difference of sums of dS over all keys up to the end of a run.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

RANDOM_LEVELS = 1 << 32
"""Number of values of the hash that dropout compares with its probability."""
SMALL_BLOCKS, LARGE_BLOCKS = (64, 32), (32, 32)
"""BLOCK_Q and BLOCK_K, for heads of at most 64 values in half precision, and for others. The former were the fastest on
an H100 that all three kernels share (scripts/results/day-one/forms-of-the-kernel.json); the latter were not timed. With
heads of 64, no registers are spilled for 32 buckets (scripts/results/kernels.json); for more than 64 they are."""
STAGES = 2
"""Tiles of keys or queries that are in flight, chosen likewise."""
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels, in place of a GPU."""
LOG2E = tl.constexpr(math.log2(math.e))


class Rows(NamedTuple):
    """Which packed queries attend to which packed keys: those of the same row."""

    query_starts: Tensor
    """[B + 1] int32: index of the first query of each row, and the number of queries."""
    key_starts: Tensor
    """[B + 1] int32."""
    query_positions: Tensor
    """[number of queries] int64: position of each query in its sequence."""
    key_positions: Tensor
    """[number of keys] int64."""
    most_queries: int
    """Number of queries of the longest row."""
    most_keys: int
    """Number of keys of the longest row."""


class PositionBias(NamedTuple):
    """A trained bias of every offset from -reach to reach. Each bucket of offsets is one run."""

    table: Tensor
    """[number of buckets, heads]; float32 on a GPU."""
    by_offset: Tensor
    """[heads, 2 * reach + 1]: log2(e) times the bias of each offset, without gradient."""
    ends: Tensor
    """[number of queries, runs] int32: how many keys of the query's row have at most the last offset of each run. The
    number of runs is a power of two; those behind the last one are empty."""
    bucket_of_run: Tensor
    """[number of buckets] int64: the bucket that each run is; 0 for empty runs, which add zero to it."""

    @classmethod
    def of(cls, table: Tensor, bucket: Tensor, rows: Rows) -> "PositionBias":
        """Look up the bias of each offset, and find the runs, without reading a value back from the device.

        Args:
            table: [number of buckets, heads].
            bucket: [2 * reach + 1] int64, the bucket of each offset.
            rows: whose positions are at most ``reach``; those of keys never descend in a row.
        """
        by_offset = (LOG2E.value * table.detach()).index_select(0, bucket).T.contiguous()
        run = bucket.diff(prepend=bucket[:1]).ne(0).cumsum(0)
        bucket_of_run = bucket.new_zeros(len(table)).scatter_(0, run, bucket)
        return cls(table, by_offset, _ends_of_runs(run, triton.next_power_of_2(len(table)), rows), bucket_of_run)


def _ends_of_runs(run: Tensor, runs: int, rows: Rows) -> Tensor:
    """Return ``ends`` from the run of each offset from -reach to reach."""
    reach = len(run) // 2
    largest_offset = torch.searchsorted(run, torch.arange(runs, device=run.device), right=True) - 1 - reach
    # Number the positions of all rows through, with one before the first of each row.
    query_row, key_row = (
        torch.arange(len(starts) - 1, device=run.device).repeat_interleave(starts.diff(), output_size=len(positions))
        for starts, positions in ((rows.query_starts, rows.query_positions), (rows.key_starts, rows.key_positions))
    )
    last = (rows.query_positions[:, None] + largest_offset).clamp(-1, reach) + (reach + 2) * query_row[:, None]
    ends = torch.searchsorted(rows.key_positions + (reach + 2) * key_row, last, right=True)
    return (ends - rows.key_starts[query_row, None]).int()


@triton.jit
def _range_of(starts, row):
    """Return the first index of a row, and its length."""
    start = tl.load(starts + row)
    return start, tl.load(starts + row + 1) - start


@triton.jit
def _load_tile(X, stride, head, index, is_valid, HEAD: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load rows [block, BLOCK_D] of a packed tensor [N, heads, HEAD], zero where invalid."""
    d = tl.arange(0, BLOCK_D)
    pointers = X + index.to(tl.int64)[:, None] * stride + head * HEAD + d[None, :]
    return tl.load(pointers, mask=is_valid[:, None] & (d < HEAD)[None, :], other=0.0)


@triton.jit
def _store_tile(X, heads, head, index, is_valid, x, HEAD: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store rows [block, BLOCK_D] of a contiguous packed tensor [N, heads, HEAD]."""
    d = tl.arange(0, BLOCK_D)
    pointers = X + (index.to(tl.int64)[:, None] * heads + head) * HEAD + d[None, :]
    tl.store(pointers, x.to(X.dtype.element_ty), mask=is_valid[:, None] & (d < HEAD)[None, :])


@triton.jit
def _dot(a, b, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """Return a @ b in ACC."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # which the interpreter multiplies wrongly
        a, b = a.to(ACC), b.to(ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _scores(
    q, k, t_q, t_k, is_key, B, reach,
    SCALE: tl.constexpr, BIAS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return log2(e) S of a tile, [BLOCK_Q, BLOCK_K]; -inf at keys behind the end of the row."""
    s = (SCALE * LOG2E) * _dot(q, tl.trans(k), ACC, PRECISION)
    if BIAS:
        s += _look_up(B + (t_k[None, :] - t_q[:, None] + reach))
    return tl.where(is_key[None, :], s, float("-inf"))


@triton.jit
def _look_up(pointers):
    """Load values, in the layout of the pointers.

    Triton would copy what tl.load reads in a loop to shared memory, value by value: a third of the forward pass's time.
    """
    if INTERPRETED:
        return tl.load(pointers)
    tl.static_assert(pointers.dtype.element_ty == tl.float32)
    return tl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _is_kept(random, keys, DROPPED: tl.constexpr):
    """Return where Z is not 0, [BLOCK_Q, BLOCK_K], by the random numbers of the queries and the numbers of the keys.

    The hash is lowbias32 (C. Wellons, Hash Function Prospector, 2018) without its last step, which improves low bits.
    """
    x = random.to(tl.uint32, bitcast=True)[:, None] ^ (keys.to(tl.uint32) * 0x9E3779B9)[None, :]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= DROPPED


@triton.jit
def _forward(
    Q, K, V, O, L, B, query_starts, key_starts, query_positions, key_positions, R,
    stride_q, stride_k, stride_v, heads, reach,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute O and L of BLOCK_Q queries of a row, for one head."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, number_of_queries = _range_of(query_starts, row)
    k_start, number_of_keys = _range_of(key_starts, row)
    if block * BLOCK_Q >= number_of_queries:
        return
    if BIAS:
        B += head * (2 * reach + 1)
    i = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_query = i < number_of_queries
    q = _load_tile(Q, stride_q, head, q_start + i, is_query, HEAD, BLOCK_D)
    t_q = tl.load(query_positions + q_start + i, mask=is_query, other=0).to(tl.int32)
    random = tl.load(R + (q_start + i) * heads + head, mask=is_query, other=0) if DROPPED else None
    m = tl.full([BLOCK_Q], float("-inf"), ACC)
    l = tl.zeros([BLOCK_Q], ACC)
    o = tl.zeros([BLOCK_Q, BLOCK_D], ACC)
    for start in range(0, number_of_keys, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        is_key = j < number_of_keys
        k = _load_tile(K, stride_k, head, k_start + j, is_key, HEAD, BLOCK_D)
        v = _load_tile(V, stride_v, head, k_start + j, is_key, HEAD, BLOCK_D)
        t_k = tl.load(key_positions + k_start + j, mask=is_key, other=0).to(tl.int32)
        s = _scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, PRECISION)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        if DROPPED:
            p = tl.where(_is_kept(random, j, DROPPED), p, 0.0)
        o = o * shrink[:, None] + _dot(p.to(v.dtype), v, ACC, PRECISION)
        m = m_new
    l = tl.where(l == 0, 1, l)  # a row without keys
    _store_tile(O, heads, head, q_start + i, is_query, o * (INVERSE_KEPT / l)[:, None], HEAD, BLOCK_D)
    tl.store(L + (q_start + i) * heads + head, m + tl.log2(l), mask=is_query)


@triton.jit
def _backward_queries(
    Q, K, V, O, L, B, dO, D, dQ, dB, ends, query_starts, key_starts, query_positions, key_positions, R,
    stride_q, stride_k, stride_v, heads, reach,
    RUNS: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute D and dQ of BLOCK_Q queries of a row, for one head, and their part of the sum of dB up to each run."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, number_of_queries = _range_of(query_starts, row)
    k_start, number_of_keys = _range_of(key_starts, row)
    if block * BLOCK_Q >= number_of_queries:
        return
    if BIAS:
        B += head * (2 * reach + 1)
    i = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_query = i < number_of_queries
    q = _load_tile(Q, stride_q, head, q_start + i, is_query, HEAD, BLOCK_D)
    o = _load_tile(O, heads * HEAD, head, q_start + i, is_query, HEAD, BLOCK_D)
    do = _load_tile(dO, heads * HEAD, head, q_start + i, is_query, HEAD, BLOCK_D)
    t_q = tl.load(query_positions + q_start + i, mask=is_query, other=0).to(tl.int32)
    l = tl.load(L + (q_start + i) * heads + head, mask=is_query, other=float("inf"))  # P = 0 behind the end
    delta = tl.sum(do.to(ACC) * o.to(ACC), 1)
    tl.store(D + (q_start + i) * heads + head, delta, mask=is_query)
    random = tl.load(R + (q_start + i) * heads + head, mask=is_query, other=0) if DROPPED else None
    dq = tl.zeros([BLOCK_Q, BLOCK_D], ACC)
    runs = tl.arange(0, RUNS)
    if BIAS:
        db = tl.zeros([BLOCK_Q, RUNS], ACC)
        end = tl.load(ends + (q_start + i)[:, None] * RUNS + runs[None, :], mask=is_query[:, None], other=0)
        columns = tl.arange(0, BLOCK_K)
        # A product with this upper triangular matrix takes prefix sums.
        up_to = tl.where(columns[:, None] <= columns[None, :], 1.0, 0.0).to(Q.dtype.element_ty)
    for start in range(0, number_of_keys, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        is_key = j < number_of_keys
        k = _load_tile(K, stride_k, head, k_start + j, is_key, HEAD, BLOCK_D)
        v = _load_tile(V, stride_v, head, k_start + j, is_key, HEAD, BLOCK_D)
        t_k = tl.load(key_positions + k_start + j, mask=is_key, other=0).to(tl.int32)
        p = tl.exp2(_scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, PRECISION) - l[:, None])
        dp = _dot(do, tl.trans(v), ACC, PRECISION)
        if DROPPED:
            dp = tl.where(_is_kept(random, j, DROPPED), dp, 0.0)
        ds = p * (INVERSE_KEPT * dp - delta[:, None])
        dq += _dot(ds.to(k.dtype), k, ACC, PRECISION)
        if BIAS:
            # To each run, the sum over the keys of the tile up to its end: all if it ends later, none if earlier.
            sums = _dot(ds.to(k.dtype), up_to, ACC, PRECISION)
            last = tl.minimum(end - start, BLOCK_K) - 1
            db += tl.where(last >= 0, tl.gather(sums, tl.maximum(last, 0), 1), 0.0)
    _store_tile(dQ, heads, head, q_start + i, is_query, SCALE * dq, HEAD, BLOCK_D)
    if BIAS:
        program = (row * tl.num_programs(0) + block) * heads + head
        tl.store(dB + program * RUNS + runs, tl.sum(db, 0))


@triton.jit
def _backward_keys(
    Q, K, V, L, B, dO, D, dK, dV, query_starts, key_starts, query_positions, key_positions, R,
    stride_q, stride_k, stride_v, heads, reach,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of BLOCK_K keys of a row, for one head."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, number_of_queries = _range_of(query_starts, row)
    k_start, number_of_keys = _range_of(key_starts, row)
    if block * BLOCK_K >= number_of_keys:
        return
    if BIAS:
        B += head * (2 * reach + 1)
    j = block * BLOCK_K + tl.arange(0, BLOCK_K)
    is_key = j < number_of_keys
    k = _load_tile(K, stride_k, head, k_start + j, is_key, HEAD, BLOCK_D)
    v = _load_tile(V, stride_v, head, k_start + j, is_key, HEAD, BLOCK_D)
    t_k = tl.load(key_positions + k_start + j, mask=is_key, other=0).to(tl.int32)
    dk = tl.zeros([BLOCK_K, BLOCK_D], ACC)
    dv = tl.zeros([BLOCK_K, BLOCK_D], ACC)
    for start in range(0, number_of_queries, BLOCK_Q):
        i = start + tl.arange(0, BLOCK_Q)
        is_query = i < number_of_queries
        q = _load_tile(Q, stride_q, head, q_start + i, is_query, HEAD, BLOCK_D)
        do = _load_tile(dO, heads * HEAD, head, q_start + i, is_query, HEAD, BLOCK_D)
        t_q = tl.load(query_positions + q_start + i, mask=is_query, other=0).to(tl.int32)
        l = tl.load(L + (q_start + i) * heads + head, mask=is_query, other=float("inf"))
        delta = tl.load(D + (q_start + i) * heads + head, mask=is_query, other=0.0)
        p = tl.exp2(_scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, PRECISION) - l[:, None])
        dp = _dot(do, tl.trans(v), ACC, PRECISION)
        zp = p
        if DROPPED:
            is_kept = _is_kept(tl.load(R + (q_start + i) * heads + head, mask=is_query, other=0), j, DROPPED)
            zp, dp = tl.where(is_kept, p, 0.0), tl.where(is_kept, dp, 0.0)
        dv += _dot(tl.trans(zp.to(do.dtype)), do, ACC, PRECISION)
        ds = p * (INVERSE_KEPT * dp - delta[:, None])
        dk += _dot(tl.trans(ds.to(q.dtype)), q, ACC, PRECISION)
    _store_tile(dK, heads, head, k_start + j, is_key, SCALE * dk, HEAD, BLOCK_D)
    _store_tile(dV, heads, head, k_start + j, is_key, INVERSE_KEPT * dv, HEAD, BLOCK_D)


@torch.compiler.disable  # torch.compile would trace the launch of the kernels
def fused_attention(q: Tensor, k: Tensor, v: Tensor, rows: Rows, bias: PositionBias | None, dropout: float) -> Tensor:
    """Apply scaled softmax attention in rows, with a trained position bias and dropout.

    Args:
        q: [number of queries, heads, head size] packed, float16, bfloat16, float32 or float64.
        k, v: [number of keys, heads, head size] packed, in the dtype of ``q``.
        rows: which queries attend to which keys.
        bias: the position bias; None for no bias.
        dropout: probability that an attention weight is dropped, rounded to a multiple of 2**-32.

    Returns:
        [number of queries, heads, head size] packed, in the dtype of ``q``; zero in rows without keys.
    """
    with torch.cuda.device_of(q):  # triton launches on the current device; the backward pass sets it
        random = _random_numbers(q) if dropout else None
        return _FusedAttention.apply(q, k, v, None if bias is None else bias.table, rows, bias, dropout, random)


def _random_numbers(q: Tensor) -> Tensor:
    """Return a random number for each query and head."""
    return torch.randint(-RANDOM_LEVELS // 2, RANDOM_LEVELS // 2, q.shape[:2], dtype=torch.int32, device=q.device)


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        rows: Rows,
        position_bias: PositionBias | None,
        dropout: float,
        random: Tensor | None,
    ) -> Tensor:
        q, k, v = (x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous() for x in (q, k, v))
        constants, accumulator = _constants(q, position_bias is not None, dropout)
        bias = None if position_bias is None else position_bias.by_offset
        output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        normaliser = torch.empty(q.shape[:2], dtype=accumulator, device=q.device)
        numbers = (q.stride(0), k.stride(0), v.stride(0), q.shape[1], 0 if bias is None else bias.shape[1] // 2)
        grid = (triton.cdiv(rows.most_queries, constants["BLOCK_Q"]), q.shape[1], len(rows.query_starts) - 1)
        if output.numel():
            _forward[grid](q, k, v, output, normaliser, bias, *rows[:4], random, *numbers, **constants)
        ctx.save_for_backward(q, k, v, output, normaliser, random)
        ctx.constants, ctx.numbers, ctx.grid, ctx.rows, ctx.bias = constants, numbers, grid, rows, position_bias
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output: Tensor):
        q, k, v, output, normaliser, random = ctx.saved_tensors
        bias = None if ctx.bias is None else ctx.bias.by_offset
        rows, pairs, numbers, constants = ctx.rows, (*ctx.rows[:4], random), ctx.numbers, ctx.constants
        d_output, delta = d_output.contiguous(), torch.empty_like(normaliser)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        ends, parts, runs = None, None, 1
        if bias is not None:
            ends, runs = ctx.bias.ends, ctx.bias.ends.shape[1]
            # Zero, because a program without queries writes nothing.
            parts = normaliser.new_zeros(ctx.grid[2], ctx.grid[0], ctx.grid[1], runs)
        if dq.numel():
            gradients = (d_output, delta, dq, parts, ends)
            own = constants | {"RUNS": runs}
            _backward_queries[ctx.grid](q, k, v, output, normaliser, bias, *gradients, *pairs, *numbers, **own)
        if dk.numel():
            grid = (triton.cdiv(rows.most_keys, constants["BLOCK_K"]), *ctx.grid[1:])
            gradients = (d_output, delta, dk, dv)
            _backward_keys[grid](q, k, v, normaliser, bias, *gradients, *pairs, *numbers, **constants)
        return dq, dk, dv, None if bias is None else _of_table(parts, ctx.bias), None, None, None, None


def _of_table(parts: Tensor, bias: PositionBias) -> Tensor:
    """Return the gradient of the table from the sums up to each run, [rows, blocks, heads, runs]."""
    by_run = F.pad(parts.sum((0, 1)), (1, 0)).diff().T[: len(bias.table)]
    return torch.zeros_like(by_run).index_add_(0, bias.bucket_of_run, by_run).to(bias.table.dtype)


def _constants(q: Tensor, has_bias: bool, dropout: float) -> tuple[dict, torch.dtype]:
    """Return the constants that the kernels are compiled for, and the dtype of their sums."""
    head_size, is_double = q.shape[2], q.dtype is torch.float64
    dropped = round(dropout * RANDOM_LEVELS)
    is_small = q.dtype.itemsize == 2 and head_size <= 64
    block_q, block_k = SMALL_BLOCKS if is_small else LARGE_BLOCKS
    constants = {
        "HEAD": head_size,
        "BLOCK_D": max(16, triton.next_power_of_2(head_size)),
        "BLOCK_Q": block_q,
        "BLOCK_K": block_k,
        "SCALE": head_size**-0.5,
        "BIAS": has_bias,
        "DROPPED": dropped,
        "INVERSE_KEPT": RANDOM_LEVELS / (RANDOM_LEVELS - dropped),
        "ACC": tl.float64 if is_double else tl.float32,
        # As torch multiplies float32 matrices.
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_stages": STAGES,
    }
    return constants, torch.float64 if is_double else torch.float32
