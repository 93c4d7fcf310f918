"""Exact attention in one kernel: packed rows of any length, a trained position bias, dropout; in Triton.

The equations are those of FlashAttention (Dao et al., 2022, arXiv 2205.14135, algorithms 2 and 4; Dao, 2023, arXiv
2307.08691), with a position bias. For query i and key j of a row, at positions t_i and t_j, of a head::

    S_ij = scale Q_i K_j + B(t_j - t_i)      L_i = log sum_j exp S_ij         P_ij = exp(S_ij - L_i)
    O_i  = sum_j Z_ij P_ij V_j               Z_ij = 0 with probability p_drop, and 1 / (1 - p_drop) otherwise

    dV_j = sum_i Z_ij P_ij dO_i              dP_ij = Z_ij dO_i V_j            D_i = dO_i O_i
    dS_ij = P_ij (dP_ij - D_i)               dQ_i = scale sum_j dS_ij K_j     dK_j = scale sum_i dS_ij Q_i
    dB(b) = sum of dS_ij over the pairs whose offset t_j - t_i is in bucket b

S, P, Z and B exist only in tiles of BLOCK_Q queries and BLOCK_K keys. Z is drawn from Philox by row, head, query and
key, in the backward pass again. No kernel uses atomic operations, so that equal inputs give equal bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

RANDOM_LEVELS = 1 << 32
"""Number of values that Philox draws from."""
SMALL_BLOCKS, LARGE_BLOCKS = (64, 32), (32, 32)
"""BLOCK_Q and BLOCK_K, for heads of at most 64 values in half precision and for others: the largest without spilled
registers for heads of 64 (scripts/results/kernels.json)."""
BACKWARD_BLOCK_Q = 32
"""BLOCK_Q of the kernel that computes dQ, in place of that, for the same reason."""


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
    """A trained bias of every offset from -reach to reach. Each bucket of offsets is one run of them."""

    table: Tensor
    """[number of buckets, heads]."""
    by_offset: Tensor
    """[heads, 2 * reach + 1]: the bias of each offset, without gradient."""
    run: Tensor
    """[2 * reach + 1] int32: number of each offset's bucket, counted in the order of the offsets."""
    bucket_of_run: Tensor
    """[number of buckets] int64: the bucket that each run is; 0 if there are fewer runs."""

    @classmethod
    def of(cls, table: Tensor, bucket: Tensor) -> "PositionBias":
        """Look up the bias of each offset, and find the runs, without reading a value back from the device.

        Args:
            table: [number of buckets, heads].
            bucket: [2 * reach + 1] int64, the bucket of each offset.
        """
        by_offset = table.detach().index_select(0, bucket).T.contiguous()
        run = bucket.diff(prepend=bucket[:1]).ne(0).cumsum(0)
        return cls(table, by_offset, run.int(), bucket.new_zeros(len(table)).scatter_(0, run, bucket))


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
def _dot(a, b, ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """Return a @ b in ACC. Triton's interpreter multiplies bfloat16 wrongly, so that UPCAST converts it there."""
    if UPCAST:
        a, b = a.to(ACC), b.to(ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _scores(
    q, k, t_q, t_k, is_key, B, reach,
    SCALE: tl.constexpr, BIAS: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return S of a tile, [BLOCK_Q, BLOCK_K]; -inf at keys behind the end of the row."""
    s = SCALE * _dot(q, tl.trans(k), ACC, UPCAST, PRECISION)
    if BIAS:
        s += tl.load(B + (t_k[None, :] - t_q[:, None]) + reach)
    return tl.where(is_key[None, :], s, float("-inf"))


@triton.jit
def _is_kept(seed, row, head, queries, first_key, BLOCK_K: tl.constexpr, DROPPED: tl.constexpr):
    """Return where Z is not 0 in a tile: word key % 4 of Philox at the counter (query, key // 4, head, row)."""
    zero = tl.zeros([queries.shape[0], BLOCK_K // 4], tl.uint32)
    fours = (first_key // 4 + tl.arange(0, BLOCK_K // 4)).to(tl.uint32)
    i, j = zero + queries.to(tl.uint32)[:, None], zero + fours[None, :]
    words = tl.philox(tl.load(seed), i, j, zero + head.to(tl.uint32), zero + row.to(tl.uint32))
    even, odd = tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3])
    return tl.interleave(even, odd).to(tl.int64) >= DROPPED


@triton.jit
def _forward(
    Q, K, V, O, L, B, query_starts, key_starts, query_positions, key_positions, seed,
    stride_q, stride_k, stride_v, heads, reach,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
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
    m = tl.full([BLOCK_Q], float("-inf"), ACC)
    l = tl.zeros([BLOCK_Q], ACC)
    o = tl.zeros([BLOCK_Q, BLOCK_D], ACC)
    for start in range(0, number_of_keys, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        is_key = j < number_of_keys
        k = _load_tile(K, stride_k, head, k_start + j, is_key, HEAD, BLOCK_D)
        v = _load_tile(V, stride_v, head, k_start + j, is_key, HEAD, BLOCK_D)
        t_k = tl.load(key_positions + k_start + j, mask=is_key, other=0).to(tl.int32)
        s = _scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, UPCAST, PRECISION)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        if DROPPED:
            p = tl.where(_is_kept(seed, row, head, i, start, BLOCK_K, DROPPED), p, 0.0)
        o = o * shrink[:, None] + _dot(p.to(v.dtype), v, ACC, UPCAST, PRECISION)
        m = m_new
    l = tl.where(l == 0, 1, l)  # a row without keys
    _store_tile(O, heads, head, q_start + i, is_query, o * (INVERSE_KEPT / l)[:, None], HEAD, BLOCK_D)
    tl.store(L + (q_start + i) * heads + head, m + tl.log(l), mask=is_query)


@triton.jit
def _backward_queries(
    Q, K, V, O, L, B, dO, D, dQ, dB, run, query_starts, key_starts, query_positions, key_positions, seed,
    stride_q, stride_k, stride_v, heads, reach,
    RUNS: tl.constexpr, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute D and dQ of BLOCK_Q queries of a row, for one head, and the part of dB that they contribute."""
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
    dq = tl.zeros([BLOCK_Q, BLOCK_D], ACC)
    runs = tl.arange(0, RUNS)
    db = tl.zeros([RUNS], ACC)
    for start in range(0, number_of_keys, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        is_key = j < number_of_keys
        k = _load_tile(K, stride_k, head, k_start + j, is_key, HEAD, BLOCK_D)
        v = _load_tile(V, stride_v, head, k_start + j, is_key, HEAD, BLOCK_D)
        t_k = tl.load(key_positions + k_start + j, mask=is_key, other=0).to(tl.int32)
        p = tl.exp(_scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, UPCAST, PRECISION) - l[:, None])
        dp = _dot(do, tl.trans(v), ACC, UPCAST, PRECISION)
        if DROPPED:
            dp = tl.where(_is_kept(seed, row, head, i, start, BLOCK_K, DROPPED), INVERSE_KEPT * dp, 0.0)
        ds = p * (dp - delta[:, None])
        dq += _dot(ds.to(k.dtype), k, ACC, UPCAST, PRECISION)
        if BIAS:
            # Only the runs of offsets between the smallest and the largest one occur: far from the diagonal, one run.
            offset = t_k[None, :] - t_q[:, None]
            smallest, largest = _extreme_offsets(t_q, t_k, is_query, is_key)
            run_of_pair = tl.load(run + offset + reach)
            for number in range(tl.load(run + smallest + reach), tl.load(run + largest + reach) + 1):
                total = tl.sum(tl.where(run_of_pair == number, ds, 0.0))
                db += tl.where(runs == number, total, 0.0)
    _store_tile(dQ, heads, head, q_start + i, is_query, SCALE * dq, HEAD, BLOCK_D)
    if BIAS:
        program = (row * tl.num_programs(0) + block) * heads + head
        tl.store(dB + program * RUNS + runs, db)


@triton.jit
def _extreme_offsets(t_q, t_k, is_query, is_key):
    """Return the smallest and the largest offset t_k - t_q in a tile."""
    far = 1 << 30
    first_q, last_q = tl.min(tl.where(is_query, t_q, far), 0), tl.max(tl.where(is_query, t_q, 0), 0)
    first_k, last_k = tl.min(tl.where(is_key, t_k, far), 0), tl.max(tl.where(is_key, t_k, 0), 0)
    return first_k - last_q, last_k - first_q


@triton.jit
def _backward_keys(
    Q, K, V, L, B, dO, D, dK, dV, query_starts, key_starts, query_positions, key_positions, seed,
    stride_q, stride_k, stride_v, heads, reach,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALE: tl.constexpr, BIAS: tl.constexpr, DROPPED: tl.constexpr, INVERSE_KEPT: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
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
        p = tl.exp(_scores(q, k, t_q, t_k, is_key, B, reach, SCALE, BIAS, ACC, UPCAST, PRECISION) - l[:, None])
        dp = _dot(do, tl.trans(v), ACC, UPCAST, PRECISION)
        zp = p
        if DROPPED:
            is_kept = _is_kept(seed, row, head, i, block * BLOCK_K, BLOCK_K, DROPPED)
            zp = tl.where(is_kept, INVERSE_KEPT * p, 0.0)
            dp = tl.where(is_kept, INVERSE_KEPT * dp, 0.0)
        dv += _dot(tl.trans(zp.to(do.dtype)), do, ACC, UPCAST, PRECISION)
        ds = p * (dp - delta[:, None])
        dk += _dot(tl.trans(ds.to(q.dtype)), q, ACC, UPCAST, PRECISION)
    _store_tile(dK, heads, head, k_start + j, is_key, SCALE * dk, HEAD, BLOCK_D)
    _store_tile(dV, heads, head, k_start + j, is_key, dv, HEAD, BLOCK_D)


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
        seed = torch.randint(1 << 31, (1,), device=q.device) if dropout else None
        return _FusedAttention.apply(q, k, v, None if bias is None else bias.table, rows, bias, dropout, seed)


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
        seed: Tensor | None,
    ) -> Tensor:
        q, k, v = (x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous() for x in (q, k, v))
        constants, accumulator = _constants(q, position_bias is not None, dropout)
        bias = None if position_bias is None else position_bias.by_offset
        output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        normaliser = torch.empty(q.shape[:2], dtype=accumulator, device=q.device)
        numbers = (q.stride(0), k.stride(0), v.stride(0), q.shape[1], 0 if bias is None else bias.shape[1] // 2)
        grid = (triton.cdiv(rows.most_queries, constants["BLOCK_Q"]), q.shape[1], len(rows.query_starts) - 1)
        if output.numel():
            _forward[grid](q, k, v, output, normaliser, bias, *rows[:4], seed, *numbers, **constants)
        ctx.save_for_backward(q, k, v, output, normaliser, seed)
        ctx.constants, ctx.numbers, ctx.grid, ctx.rows, ctx.bias = constants, numbers, grid, rows, position_bias
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output: Tensor):
        q, k, v, output, normaliser, seed = ctx.saved_tensors
        bias = None if ctx.bias is None else ctx.bias.by_offset
        rows, pairs, numbers, constants = ctx.rows, (*ctx.rows[:4], seed), ctx.numbers, ctx.constants
        d_output, delta = d_output.contiguous(), torch.empty_like(normaliser)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        run, parts, runs = None, None, 1
        grid = (triton.cdiv(rows.most_queries, BACKWARD_BLOCK_Q), *ctx.grid[1:])
        if bias is not None:
            run, runs = ctx.bias.run, triton.next_power_of_2(len(ctx.bias.table))
            # Zero, because a program without queries writes nothing.
            parts = normaliser.new_zeros(grid[2], grid[0], grid[1], runs)
        if dq.numel():
            gradients = (d_output, delta, dq, parts, run)
            own = constants | {"BLOCK_Q": BACKWARD_BLOCK_Q, "RUNS": runs}
            _backward_queries[grid](q, k, v, output, normaliser, bias, *gradients, *pairs, *numbers, **own)
        if dk.numel():
            grid = (triton.cdiv(rows.most_keys, constants["BLOCK_K"]), *ctx.grid[1:])
            gradients = (d_output, delta, dk, dv)
            _backward_keys[grid](q, k, v, normaliser, bias, *gradients, *pairs, *numbers, **constants)
        return dq, dk, dv, None if bias is None else _of_table(parts, ctx.bias), None, None, None, None


def _of_table(parts: Tensor, bias: PositionBias) -> Tensor:
    """Return the gradient of the table from those of the runs, [rows, blocks, heads, runs]."""
    by_run = parts.sum((0, 1)).T[: len(bias.table)]
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
        "UPCAST": triton.knobs.runtime.interpret and q.dtype is torch.bfloat16,
        # As torch multiplies float32 matrices.
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    }
    return constants, torch.float64 if is_double else torch.float32
