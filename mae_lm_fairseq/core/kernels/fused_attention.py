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

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from mae_lm_fairseq.core.kernels import operator
from mae_lm_fairseq.core.kernels.operator import RANDOM_LEVELS, Pairs

SMALL_BLOCKS, LARGE_BLOCKS = (64, 32), (32, 32)
"""BLOCK_Q and BLOCK_K, for heads of at most 64 values in half precision, and for others. The former were the fastest on
an H100 that all three kernels share (scripts/results/day-one/forms-of-the-kernel.json); the latter were not timed. With
heads of 64, no registers are spilled for 32 buckets (scripts/results/kernels.json); for more than 64 they are."""
STAGES = 2
"""Tiles of keys or queries that are in flight, chosen likewise."""
INTERPRETED = tl.constexpr(knobs.runtime.interpret)
"""Whether Triton's interpreter runs the kernels, in place of a GPU."""
LOG2E = tl.constexpr(operator.LOG2E)


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
def _store_tile(X, stride, head, index, is_valid, x, HEAD: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store rows [block, BLOCK_D] of a packed tensor [N, heads, HEAD]."""
    d = tl.arange(0, BLOCK_D)
    pointers = X + index.to(tl.int64)[:, None] * stride + head * HEAD + d[None, :]
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
        s += _look_up(B + (t_k[None, :] - (t_q[:, None] - reach)))
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
def _opaque(x):
    """Return x. Without this, LLVM rounds first, and then drops values in half precision one by one."""
    if INTERPRETED or x.dtype != tl.float32:
        return x
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


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
            p = _opaque(tl.where(_is_kept(random, j, DROPPED), p, 0.0))
        o = o * shrink[:, None] + _dot(p.to(v.dtype), v, ACC, PRECISION)
        m = m_new
    l = tl.where(l == 0, 1, l)  # a row without keys
    _store_tile(O, heads * HEAD, head, q_start + i, is_query, o * (INVERSE_KEPT / l)[:, None], HEAD, BLOCK_D)
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
    _store_tile(dQ, stride_q, head, q_start + i, is_query, SCALE * dq, HEAD, BLOCK_D)
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
            zp, dp = _opaque(tl.where(is_kept, p, 0.0)), tl.where(is_kept, dp, 0.0)
        dv += _dot(tl.trans(zp.to(do.dtype)), do, ACC, PRECISION)
        ds = p * (INVERSE_KEPT * dp - delta[:, None])
        dk += _dot(tl.trans(ds.to(q.dtype)), q, ACC, PRECISION)
    _store_tile(dK, stride_k, head, k_start + j, is_key, SCALE * dk, HEAD, BLOCK_D)
    _store_tile(dV, stride_v, head, k_start + j, is_key, INVERSE_KEPT * dv, HEAD, BLOCK_D)


def attend(packed: Tensor, queries: Tensor | None, table: Tensor | None, *pairs) -> tuple[Tensor, Tensor]:
    """Return O and L; :func:`~mae_lm_fairseq.core.kernels.operator.attend` describes the arguments."""
    pairs, (output, normaliser) = Pairs(*pairs), operator.empty_output(packed, queries)
    inputs, arguments, constants = _arguments(packed, queries, pairs)
    grid = _grid(pairs.most_queries, constants["BLOCK_Q"], normaliser, pairs)
    if output.numel():
        with torch.cuda.device_of(packed):  # triton launches on the current device
            _forward[grid](*inputs, output, normaliser, pairs.by_offset, *arguments, **constants)
    return output, normaliser


def attend_backward(
    d_output: Tensor, packed: Tensor, queries: Tensor | None, output: Tensor, normaliser: Tensor, buckets: int, *pairs
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``packed``, ``queries`` and the table."""
    pairs, gradients = Pairs(*pairs), operator.empty_gradients(packed, queries)
    inputs, arguments, constants = _arguments(packed, queries, pairs)
    dq, dk, dv = operator.split(gradients[0], None if queries is None else gradients[1])
    grid, parts = _grid(pairs.most_queries, constants["BLOCK_Q"], normaliser, pairs), None
    if buckets:  # zero, because a program without queries writes nothing
        parts = normaliser.new_zeros(grid[2], grid[0], grid[1], pairs.ends.shape[1])
    shared = normaliser, pairs.by_offset, d_output.contiguous(), torch.empty_like(normaliser)
    with torch.cuda.device_of(packed):
        if dq.numel():
            own = constants | {"RUNS": parts.shape[3] if buckets else 1}
            _backward_queries[grid](*inputs, output, *shared, dq, parts, pairs.ends, *arguments, **own)
        if dk.numel():
            grid = _grid(pairs.most_keys, constants["BLOCK_K"], normaliser, pairs)
            _backward_keys[grid](*inputs, *shared, dk, dv, *arguments, **constants)
    if not buckets:
        return *gradients, normaliser.new_empty(0, normaliser.shape[1])
    by_run = F.pad(parts.sum((0, 1)), (1, 0)).diff().T[:buckets]  # from the sums up to each run
    return *gradients, by_run.new_zeros(by_run.shape).index_add_(0, pairs.bucket_of_run, by_run)


def _arguments(packed: Tensor, queries: Tensor | None, pairs: Pairs) -> tuple[tuple, tuple, dict]:
    """Return Q, K and V, the last arguments of each kernel, and the constants that it is compiled for."""
    inputs, bias = operator.split(packed, queries), pairs.by_offset
    numbers = *(x.stride(0) for x in inputs), packed.shape[2], 0 if bias is None else bias.shape[1] // 2
    return inputs, (*pairs[:4], pairs.random, *numbers), _constants(inputs[0], bias is not None, pairs.dropout)


def _grid(longest: int, block: int, normaliser: Tensor, pairs: Pairs) -> tuple[int, int, int]:
    """Return the numbers of blocks of the longest row, heads and rows."""
    return triton.cdiv(longest, block), normaliser.shape[1], len(pairs.query_starts) - 1


def _constants(q: Tensor, has_bias: bool, dropout: float) -> dict:
    """Return the constants that the kernels are compiled for."""
    dropped, head_size = round(dropout * RANDOM_LEVELS), q.shape[2]
    block_q, block_k = SMALL_BLOCKS if q.dtype.itemsize == 2 and head_size <= 64 else LARGE_BLOCKS
    return {
        "HEAD": head_size,
        "BLOCK_D": max(16, triton.next_power_of_2(head_size)),
        "BLOCK_Q": block_q,
        "BLOCK_K": block_k,
        "SCALE": head_size**-0.5,
        "BIAS": has_bias,
        "DROPPED": dropped,
        "INVERSE_KEPT": RANDOM_LEVELS / (RANDOM_LEVELS - dropped),
        "ACC": tl.float64 if q.dtype is torch.float64 else tl.float32,
        # As torch multiplies float32 matrices.
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_stages": STAGES,
    }


for _kernel in (attend, attend_backward):
    torch.library.impl(f"mae_lm_fairseq::{_kernel.__name__}", "cuda", _kernel)
