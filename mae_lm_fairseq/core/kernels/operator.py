"""Attention over packed rows as an operator, which torch.compile takes as it is.

On a GPU it is the kernel of :mod:`~mae_lm_fairseq.core.kernels.fused_attention`, on a CPU the equations in that
module, row by row, with the same dropout for the same random numbers.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

RANDOM_LEVELS = 1 << 32
"""Number of values of the hash that dropout compares with its probability."""
LOG2E = math.log2(math.e)


class Rows(NamedTuple):
    """Rows of packed queries and keys; a query attends to the keys of its own row."""

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
        by_offset = (LOG2E * table.detach()).index_select(0, bucket).T.contiguous()
        begins = bucket.diff(prepend=bucket[:1]).ne(0)
        run = begins.cumsum(0)
        runs = 1 << (len(table) - 1).bit_length()
        bucket_of_run = bucket.new_zeros(len(table)).scatter_(0, run, bucket)
        return cls(table, by_offset, _ends_of_runs(run, runs, rows), bucket_of_run)


def _ends_of_runs(run: Tensor, runs: int, rows: Rows) -> Tensor:
    """Return ``ends`` from the run of each offset from -reach to reach."""
    reach = len(run) // 2
    numbers = torch.arange(runs, device=run.device)
    largest_offset = torch.searchsorted(run, numbers, right=True) - 1 - reach
    last = (rows.query_positions[:, None] + largest_offset).clamp(-1, reach)

    # Number the positions of all rows through, with one before the first of each row.
    query_row = _row_of_each(rows.query_starts, len(rows.query_positions))
    key_row = _row_of_each(rows.key_starts, len(rows.key_positions))
    last = last + (reach + 2) * query_row[:, None]
    keys = rows.key_positions + (reach + 2) * key_row
    ends = torch.searchsorted(keys, last, right=True)
    return (ends - rows.key_starts[query_row, None]).int()


def _row_of_each(starts: Tensor, positions: int) -> Tensor:
    """Return the row of each position, given the first position of each row and their number."""
    rows = torch.arange(len(starts) - 1, device=starts.device)
    return rows.repeat_interleave(starts.diff(), output_size=positions)


class Pairs(NamedTuple):
    """The pairs of queries and keys as the operators take them: rows, position bias and dropout."""

    query_starts: Tensor
    key_starts: Tensor
    query_positions: Tensor
    key_positions: Tensor
    by_offset: Tensor | None
    ends: Tensor | None
    bucket_of_run: Tensor | None
    random: Tensor | None
    """[number of queries, heads] int32; None without dropout."""
    most_queries: int
    most_keys: int
    dropout: float


_TENSORS = len(Pairs._fields) - 3
_PAIRS = (
    "Tensor query_starts, Tensor key_starts, Tensor query_positions, Tensor key_positions, Tensor? by_offset, "
    "Tensor? ends, Tensor? bucket_of_run, Tensor? random, SymInt most_queries, SymInt most_keys, float dropout"
)
# Not custom_op, which accepts tags only since torch 2.7, and takes more of the host's time.
_define = functools.partial(torch.library.define, tags=(torch.Tag.pt2_compliant_tag,))
_define("mae_lm_fairseq::attend", f"(Tensor packed, Tensor? queries, Tensor? table, {_PAIRS}) -> (Tensor, Tensor)")
_define(
    "mae_lm_fairseq::attend_backward",
    "(Tensor d_output, Tensor packed, Tensor? queries, Tensor output, Tensor normaliser, SymInt buckets, "
    f"{_PAIRS}) -> (Tensor, Tensor, Tensor)",
)


def attend(packed: Tensor, queries: Tensor | None, rows: Rows, bias: PositionBias | None, dropout: float) -> Tensor:
    """Apply scaled softmax attention in rows, with a trained position bias and dropout.

    Args:
        packed: [N, 3, heads, head size] queries, keys and values; with ``queries``, [N, 2, heads, head size] keys and
            values; float16, bfloat16, float32 or float64.
        queries: [number of queries, heads, head size] in the dtype of ``packed``; None if they are in it.
        rows: which queries attend to which keys.
        bias: the position bias; None for no bias.
        dropout: probability that an attention weight is dropped, rounded to a multiple of 2**-32.

    Returns:
        [number of queries, heads, head size], in the dtype of ``packed``; zero in rows without keys.
    """
    random = random_numbers(len(rows.query_positions), packed) if dropout else None
    table, by_offset, ends, bucket_of_run = (None,) * 4 if bias is None else bias
    pairs = Pairs(
        query_starts=rows.query_starts,
        key_starts=rows.key_starts,
        query_positions=rows.query_positions,
        key_positions=rows.key_positions,
        by_offset=by_offset,
        ends=ends,
        bucket_of_run=bucket_of_run,
        random=random,
        most_queries=rows.most_queries,
        most_keys=rows.most_keys,
        dropout=dropout,
    )
    packed = packed.contiguous()
    if queries is not None:
        queries = queries.contiguous()
    output, _ = torch.ops.mae_lm_fairseq.attend(packed, queries, table, *pairs)
    return output


def random_numbers(queries: int, packed: Tensor) -> Tensor:
    """Return a random number for each query and head."""
    shape = queries, packed.shape[2]
    return torch.randint(-RANDOM_LEVELS // 2, RANDOM_LEVELS // 2, shape, dtype=torch.int32, device=packed.device)


def split(packed: Tensor, queries: Tensor | None) -> tuple[Tensor, ...]:
    """Return views of queries, keys and values, [N, heads, head size] each."""
    return packed.unbind(1) if queries is None else (queries, *packed.unbind(1))


def empty_output(packed: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return memory for O and L."""
    q, _, _ = split(packed, queries)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=dtype)


def empty_gradients(packed: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return memory for the gradients of both; a tensor without elements in place of None."""
    of_queries = packed.new_empty(0) if queries is None else torch.empty_like(queries)
    return torch.empty_like(packed), of_queries


@torch.library.register_fake("mae_lm_fairseq::attend")
def _(packed: Tensor, queries: Tensor | None, table: Tensor | None, *pairs) -> tuple[Tensor, Tensor]:
    return empty_output(packed, queries)


@torch.library.register_fake("mae_lm_fairseq::attend_backward")
def _(
    d_output: Tensor, packed: Tensor, queries: Tensor | None, output: Tensor, normaliser: Tensor, buckets: int, *pairs
) -> tuple[Tensor, Tensor, Tensor]:
    return *empty_gradients(packed, queries), normaliser.new_empty(buckets, normaliser.shape[1])


def _save(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    packed, queries, table, *pairs = inputs
    ctx.save_for_backward(packed, queries, *output, *pairs[:_TENSORS])
    ctx.numbers = pairs[_TENSORS:]
    ctx.buckets = 0 if table is None else len(table)
    ctx.set_materialize_grads(False)  # of the normaliser


def _differentiate(ctx, d_output: Tensor, _) -> tuple[Tensor | None, ...]:
    packed, queries, output, normaliser, *tensors = ctx.saved_tensors
    d_packed, d_queries, d_table = torch.ops.mae_lm_fairseq.attend_backward(
        d_output, packed, queries, output, normaliser, ctx.buckets, *tensors, *ctx.numbers
    )
    if queries is None:
        d_queries = None
    if not ctx.buckets:
        d_table = None
    return d_packed, d_queries, d_table, *(None for _ in Pairs._fields)


torch.library.register_autograd("mae_lm_fairseq::attend", _differentiate, setup_context=_save)


class _Row(NamedTuple):
    """A row in the equations of the kernel."""

    i: slice
    """The queries."""
    j: slice
    """The keys."""
    q: Tensor
    k: Tensor
    v: Tensor
    s: Tensor
    """Scores [heads, queries, keys]."""
    z: Tensor | float
    """[heads, queries, keys]; 1 without dropout."""


def _rows(packed: Tensor, queries: Tensor | None, pairs: Pairs) -> Iterator[_Row]:
    everything = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in split(packed, queries)]
    all_q, all_k, all_v = everything
    scale = all_q.shape[2] ** -0.5
    for i, j in zip(_slices(pairs.query_starts), _slices(pairs.key_starts), strict=True):
        q, k, v = all_q[i], all_k[j], all_v[j]
        s = torch.einsum("qhd,khd->hqk", q, k) * scale
        if pairs.by_offset is not None:
            reach = pairs.by_offset.shape[1] // 2
            offsets = pairs.key_positions[j] - pairs.query_positions[i, None]
            s += pairs.by_offset[:, offsets + reach] / LOG2E
        z = 1.0 if pairs.random is None else keep(pairs.random[i], len(k), pairs.dropout)
        yield _Row(i, j, q, k, v, s, z)


def _slices(starts: Tensor) -> Iterator[slice]:
    """Return the positions of each row, given the first one of each and their number."""
    return itertools.starmap(slice, itertools.pairwise(starts.tolist()))


def keep(random: Tensor, keys: int, dropout: float) -> Tensor:
    """Return Z [heads, queries, keys] by the hash of the kernel, from random numbers [queries, heads] int32."""
    # Signed, as torch's integers are: the comparison flips the sign bit of both sides.
    dropped = round(dropout * RANDOM_LEVELS)
    half = RANDOM_LEVELS // 2
    numbers = torch.arange(keys, dtype=torch.int32, device=random.device)
    x = random.T[:, :, None] ^ numbers * -0x61C88647
    x = (x ^ x >> 16 & 0xFFFF) * 0x7FEB352D
    x = (x ^ x >> 15 & 0x1FFFF) * -0x7B935975
    is_kept = (x ^ -half) >= dropped - half
    return is_kept * (RANDOM_LEVELS / (RANDOM_LEVELS - dropped))


@torch.library.impl("mae_lm_fairseq::attend", "cpu")
@torch.autocast("cpu", enabled=False)
def attend_by_equations(packed: Tensor, queries: Tensor | None, table: Tensor | None, *pairs) -> tuple[Tensor, Tensor]:
    """Return O and L."""
    output, normaliser = empty_output(packed, queries)
    for row in _rows(packed, queries, Pairs(*pairs)):
        normaliser[row.i] = row.s.logsumexp(2).T
        zp = row.z * _probabilities(row, normaliser)
        o = torch.einsum("hqk,khd->qhd", zp, row.v)
        output[row.i] = o.to(output.dtype)
    return output, normaliser


def _probabilities(row: _Row, normaliser: Tensor) -> Tensor:
    """Return P [heads, queries, keys]."""
    l = normaliser[row.i].T
    return (row.s - l[:, :, None]).exp()


@torch.library.impl("mae_lm_fairseq::attend_backward", "cpu")
@torch.autocast("cpu", enabled=False)
def attend_backward_by_equations(
    d_output: Tensor, packed: Tensor, queries: Tensor | None, output: Tensor, normaliser: Tensor, buckets: int, *pairs
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``packed``, ``queries`` and the table."""
    pairs = Pairs(*pairs)
    d_packed, d_queries = empty_gradients(packed, queries)
    d_table = normaliser.new_zeros(buckets, normaliser.shape[1])
    dq, dk, dv = split(d_packed, None if queries is None else d_queries)
    for row in _rows(packed, queries, pairs):
        i, j, q, k, v, s, z = row
        scale = q.shape[2] ** -0.5
        do = d_output[i].to(s.dtype)
        p = _probabilities(row, normaliser)
        dp = z * torch.einsum("qhd,khd->hqk", do, v)
        delta = (do * output[i]).sum(2).T
        ds = p * (dp - delta[:, :, None])
        dq[i] = (scale * torch.einsum("hqk,khd->qhd", ds, k)).to(dq.dtype)
        dk[j] = (scale * torch.einsum("hqk,qhd->khd", ds, q)).to(dk.dtype)
        dv[j] = torch.einsum("hqk,qhd->khd", z * p, do).to(dv.dtype)
        if buckets:
            run = (pairs.ends[i, :, None] <= torch.arange(len(k))).sum(1)
            bucket = pairs.bucket_of_run[run].flatten()
            d_table.index_add_(0, bucket, ds.flatten(1).T)
    return d_packed, d_queries, d_table
