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
    interval,
    principal_angles,
    ranks,
    resamples,
    subspace,
)
from mae_lm_fairseq.statistics.token_states import EncoderStates, MaskedText, masked_batches, states_by_kind
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
    keep: Sequence[int],
    settings: RankSettings,
    progress: Callable[[Sequence, str], Iterable] = lambda steps, name: steps,
    memory: int = MEMORY,
    keep_moments: Callable[[int, str, SecondMoments], None] = lambda *moments: None,
) -> dict[str, Any]:
    """Measure the ranks of real tokens and of ``[MASK]`` in every layer, with and without ``[MASK]`` in the text.

    Args:
        texts: at least two.
        keep: ids of special tokens, which are never masked.
        progress: iterates over the given steps, and may show progress under the given name.
        memory: maximum bytes of second moments in memory.
        keep_moments: is called with layer, TOKENS_INPUT and their second moments.

    Returns:
        ``width``, ``layers``, ``texts``, ``tokens``, ``chunks``, the settings, and four lists of rows:

        - ``ranks``: ``layer`` (0: embeddings), ``input``, ``tokens`` ("real" or "mask"), ``count`` (number of states),
          and for each measure its value, ``low`` and ``high`` (95 %);
        - ``gaps``: ``layer``, ``input``, and for each measure the rank of real tokens with that input minus their rank
          with clean text, with ``low`` and ``high``;
        - ``rises``: the same for the rank of ``[MASK]``, minus its rank in the first layer that sees it;
        - ``outside``: ``layer``, ``input``; ``share``, the fraction of the sum of squares of ``[MASK]`` outside the
          space of the real tokens around it (the fewest directions that hold ``threshold`` of theirs), with ``low`` and
          ``high``; ``share_of_real``, the same fraction for the real tokens themselves; ``excess``, the difference,
          with ``low`` and ``high`` (as ``excess_low``, ``excess_high``); ``dimensions`` of the space of ``[MASK]``, and
          ``dimensions_outside``; ``angles``, the principal angles in degrees.
    """
    chunks = min(CHUNKS, len(texts))
    weights = resamples(chunks, settings.bootstrap, settings.seed)
    batches = _batches(encoder, texts, chunks, keep, settings)
    found, outside, counts = {}, [], {}
    at_once = max(1, memory // ((2 * len(encoder.inputs) - 1) * chunks * encoder.dim**2 * 8))
    for first in range(0, encoder.layers + 1, at_once):
        layers = range(first, min(first + at_once, encoder.layers + 1))
        name = f"layers {layers[0]} to {layers[-1]}"
        moments = _collect(encoder, progress(batches, f"{name}, text"), chunks, layers)
        for layer in progress(layers, f"{name}, ranks"):
            for key in sorted(key for key in moments if key[0] == layer):
                found[key] = ranks(moments[key].energies(weights, settings.centred), settings.threshold)
                counts[key] = moments[key].count
                _, kind, tokens = key
                keep_moments(layer, f"{tokens}_{kind}", moments[key])
                if tokens == "mask":
                    fractions = _outside(moments[layer, kind, "real"], moments[key], weights, settings)
                    outside.append({"layer": layer, "input": kind} | fractions)
    return {
        "width": encoder.dim,
        "layers": encoder.layers,
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "chunks": chunks,
        **{field.name: getattr(settings, field.name) for field in fields(RankSettings)},
        **_rank_rows(found, counts, weights),
        "outside": outside,
    }


def _batches(encoder, texts, chunks, keep, settings) -> list[tuple[int, MaskedText]]:
    # Contiguous chunks of equal size, because neighbouring texts are often from one document.
    bounds, masking = [len(texts) * k // chunks for k in range(chunks + 1)], (settings.mask_prob, settings.seed)
    return [
        (chunk, batch)
        for chunk, (start, end) in enumerate(pairwise(bounds))
        for batch in masked_batches(texts[start:end], encoder.pad, keep, *masking, first=start)
    ]


def _collect(encoder, batches, chunks, layers) -> dict[tuple[int, str, str], SecondMoments]:
    moments = {}
    for chunk, batch in batches:
        for kind, tokens, layer, states in states_by_kind(encoder, batch):
            if layer in layers:
                key = layer, kind, tokens
                moments.setdefault(key, SecondMoments(encoder.dim, chunks)).add(states, chunk)
    return moments


def _rank_rows(found: dict, counts: dict, weights: Tensor) -> dict[str, list[dict]]:
    rows, first = {"ranks": [], "gaps": [], "rises": []}, {}
    for (layer, kind, tokens), values in found.items():
        key = {"layer": layer, "input": kind}
        count = {"tokens": tokens, "count": counts[layer, kind, tokens]}
        rows["ranks"].append(key | count | _with_intervals(values, weights))
        if tokens == "mask":
            base, name = first.setdefault(kind, values), "rises"
        else:
            base, name = found[layer, "clean", "real"], "gaps"
        if base is not values:
            difference = {measure: values[measure] - base[measure] for measure in RANKS}
            rows[name].append(key | _with_intervals(difference, weights))
    return rows


def _outside(real: SecondMoments, mask: SecondMoments, weights: Tensor, settings: RankSettings) -> dict[str, Any]:
    fractions, excess, bases = [], [], []
    pairs = zip(real.matrices(weights, settings.centred), mask.matrices(weights, settings.centred), strict=True)
    for of_real, of_mask in pairs:
        basis = subspace(of_real, settings.threshold)
        bases = bases or [basis, subspace(of_mask, settings.threshold)]
        fractions.append(fraction_outside(of_mask, basis))
        excess.append(fractions[-1] - fraction_outside(of_real, basis))
    (low, high), (excess_low, excess_high) = (interval(torch.tensor(x), weights.size(1)) for x in (fractions, excess))
    angles, dimensions = principal_angles(*bases), bases[1].size(1)
    return {
        "share": fractions[0],
        "low": low,
        "high": high,
        "share_of_real": fractions[0] - excess[0],
        "excess": excess[0],
        "excess_low": excess_low,
        "excess_high": excess_high,
        "dimensions": dimensions,
        "dimensions_outside": dimensions - float(torch.deg2rad(angles).cos().square().sum()),
        "angles": angles.tolist(),
    }


def _with_intervals(found: dict[str, Tensor], weights: Tensor) -> dict[str, float]:
    row = {}
    for name, values in found.items():
        row[name] = float(values[0])
        row[f"{name}_low"], row[f"{name}_high"] = interval(values, weights.size(1))
    return row
