"""Effective ranks of an encoder, layer by layer, as plain data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Annotated, Any

import torch
from torch import Tensor

from mae_lm_fairseq.statistics.effective_rank import (
    RANKS,
    SecondMoments,
    fraction_outside,
    ignore_moments,
    interval,
    ranks,
    resamples,
    subspace,
)
from mae_lm_fairseq.statistics.token_states import (
    EncoderStates,
    KindOfStates,
    MaskedBatch,
    layer_ranges,
    masked_batches,
    states_by_kind,
)
from mae_lm_fairseq.utils.command_line import Argument, Fraction, Natural, Options, Probability

CHUNKS = 20
"""Number of chunks of the texts for the bootstrap."""
MEMORY = 1 << 32
"""Maximum bytes of second moments in memory. If all layers need more, the text is read several times."""


@dataclass(frozen=True, kw_only=True)
class RankSettings(Options):
    """Settings for the measurement of effective ranks.

    Attributes:
        mask_prob: fraction of the tokens to mask.
        threshold: fraction of the sum of squares that defines the threshold rank.
        centred: measure ranks around the mean instead of zero, unlike the paper.
        bootstrap: number of bootstrap resamples for the intervals.
        seed: seed of masks and resamples.
    """

    mask_prob: Probability = 0.15
    threshold: Fraction = 0.9
    centred: bool = False
    bootstrap: Annotated[int, Argument("N", at_least=2)] = 100
    seed: Natural = 1


def rank_profile(
    encoder: EncoderStates,
    texts: Sequence[list[int]],
    special_ids: Sequence[int],
    settings: RankSettings,
    progress: Callable[[Sequence, str], Iterable] = lambda steps, name: steps,
    memory: int = MEMORY,
    keep_moments: Callable[[int, str, SecondMoments], None] = ignore_moments,
) -> dict[str, Any]:
    """Measure the ranks of real tokens and of ``[MASK]`` in every layer, with and without ``[MASK]`` in the text.

    Args:
        texts: at least two.
        special_ids: ids that are never masked.
        progress: iterates over the given steps, and may show progress under the given name.
        memory: maximum bytes of second moments in memory.
        keep_moments: is called with layer, TOKENS_INPUT and their second moments.

    Returns:
        ``width``, ``layers``, ``texts``, ``tokens``, ``chunks``, the settings, and three lists of rows:

        - ``ranks``: ``layer`` (0: embeddings), ``input``, ``tokens`` ("real" or "mask"), ``count`` (number of states),
          and for each measure its value, ``low`` and ``high`` (95 %);
        - ``gaps``: ``layer``, ``input``, and for each measure the rank of real tokens with that input minus their rank
          with clean text, with ``low`` and ``high``;
        - ``outside``: ``layer``, ``input``; ``share``, the fraction of the sum of squares of ``[MASK]`` outside the
          space of the real tokens around it (the fewest directions that hold ``threshold`` of theirs), with ``low`` and
          ``high``; ``share_of_real``, the same fraction for the real tokens themselves; ``excess``, the difference,
          with ``low`` and ``high`` (as ``excess_low``, ``excess_high``).
    """
    chunks = min(CHUNKS, len(texts))
    weights = resamples(chunks, settings.bootstrap, settings.seed)
    batches = _batches(encoder, texts, chunks, special_ids, settings)
    counts: dict[KindOfStates, int] = {}
    ranks_of: dict[KindOfStates, dict[str, Tensor]] = {}
    outside = []
    matrices = 2 * len(encoder.inputs) - 1  # clean text has no [MASK]
    bytes_per_layer = matrices * chunks * encoder.dim**2 * 8

    for layers in layer_ranges(encoder.layers, bytes_per_layer, memory):
        title = f"layers {layers[0]} to {layers[-1]}"
        all_moments = _collect(encoder, progress(batches, f"{title}, text"), chunks, layers)
        for layer in progress(layers, f"{title}, ranks"):
            for kind in sorted(all_moments):
                if kind.layer != layer:
                    continue
                moments = all_moments[kind]
                counts[kind] = moments.count
                ranks_of[kind] = ranks(moments.energies(weights, settings.centred), settings.threshold)
                keep_moments(layer, f"{kind.tokens}_{kind.input}", moments)
                if kind.tokens == "mask":
                    real = all_moments[kind._replace(tokens="real")]
                    row = {"layer": layer, "input": kind.input}
                    outside.append(row | _outside(real, moments, weights, settings))

    rows = []
    for kind, values in ranks_of.items():
        row = {**kind._asdict(), "count": counts[kind]}
        rows.append(row | _row(values, chunks))
    return {
        "width": encoder.dim,
        "layers": encoder.layers,
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "chunks": chunks,
        **{field.name: getattr(settings, field.name) for field in fields(RankSettings)},
        "ranks": rows,
        "gaps": _gaps(ranks_of, chunks),
        "outside": outside,
    }


def _batches(
    encoder: EncoderStates, texts: Sequence[list[int]], chunks: int, special_ids: Sequence[int], settings: RankSettings
) -> list[tuple[int, MaskedBatch]]:
    """Return the texts in masked batches, each with the number of its chunk."""
    # Contiguous chunks of equal size, because neighbouring texts are often from one document.
    bounds = [len(texts) * chunk // chunks for chunk in range(chunks + 1)]
    batches = []
    for chunk, (start, end) in enumerate(pairwise(bounds)):
        masked = masked_batches(
            texts[start:end],
            encoder.pad,
            special_ids,
            settings.mask_prob,
            settings.seed,
            first=start,
        )
        batches += [(chunk, batch) for batch in masked]
    return batches


def _collect(
    encoder: EncoderStates, batches: Iterable[tuple[int, MaskedBatch]], chunks: int, layers: range
) -> dict[KindOfStates, SecondMoments]:
    """Return the second moments of the states of some layers."""
    moments: dict[KindOfStates, SecondMoments] = {}
    for chunk, batch in batches:
        for kind, states in states_by_kind(encoder, batch):
            if kind.layer not in layers:
                continue
            if kind not in moments:
                moments[kind] = SecondMoments(encoder.dim, chunks)
            moments[kind].add(states, chunk)
    return moments


def _gaps(ranks_of: dict[KindOfStates, dict[str, Tensor]], chunks: int) -> list[dict[str, Any]]:
    """Return the rows of the difference that ``[MASK]`` in the text makes to real tokens."""
    rows = []
    for kind, values in ranks_of.items():
        if kind.tokens == "real" and kind.input != "clean":
            clean = ranks_of[kind._replace(input="clean")]
            gap = {name: values[name] - clean[name] for name in RANKS}
            rows.append({"layer": kind.layer, "input": kind.input} | _row(gap, chunks))
    return rows


def _outside(real: SecondMoments, mask: SecondMoments, weights: Tensor, settings: RankSettings) -> dict[str, float]:
    """Return how much of ``[MASK]`` is outside the space of real tokens, see :func:`rank_profile`."""
    shares, excesses = [], []
    real_matrices = real.matrices(weights, settings.centred)
    mask_matrices = mask.matrices(weights, settings.centred)
    for real_matrix, mask_matrix in zip(real_matrices, mask_matrices, strict=True):
        basis = subspace(real_matrix, settings.threshold)
        share = fraction_outside(mask_matrix, basis)
        shares.append(share)
        excesses.append(share - fraction_outside(real_matrix, basis))

    chunks = weights.size(1)
    low, high = interval(torch.tensor(shares), chunks)
    excess_low, excess_high = interval(torch.tensor(excesses), chunks)
    return {
        "share": shares[0],
        "low": low,
        "high": high,
        "share_of_real": shares[0] - excesses[0],
        "excess": excesses[0],
        "excess_low": excess_low,
        "excess_high": excess_high,
    }


def _row(statistics: dict[str, Tensor], chunks: int) -> dict[str, float]:
    """Return the values of statistics on the full text, with their intervals."""
    row = {}
    for name, values in statistics.items():
        row[name] = float(values[0])
        row[f"{name}_low"], row[f"{name}_high"] = interval(values, chunks)
    return row
