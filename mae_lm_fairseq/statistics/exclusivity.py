"""Exclusivity: how much of the energy of ``[MASK]`` lies in directions that real tokens do not use.

The MAE-LM paper (Meng et al., ICLR 2024) says that an MLM reserves dimensions exclusively for ``[MASK]``. Let U be the
space of the fewest directions that hold a fraction of the sum of squares of real tokens in clean text, fitted on every
other document. The exclusivity is the share of ``[MASK]`` outside of U less that of the real tokens of the remaining
documents, which also lie outside of U in part. Controls show what is special about ``[MASK]``: frequent tokens, each
left out of the fit that it is compared with, and random groups of real tokens.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.statistics.effective_rank import SecondMoments, fraction_outside, subspace
from mae_lm_fairseq.statistics.token_states import EncoderStates, masked_batches

THRESHOLDS = (0.9, 0.99)
"""Fractions of the sum of squares that U holds; the controls are at the first one."""
TYPES, GROUPS = 20, 20
"""Number of frequent tokens and of random groups."""


class Halves(NamedTuple):
    """Texts for the measurement.

    Attributes:
        fit: ids of the texts that U is fitted on.
        held_out: ids of texts from other documents.
        types: ids of the tokens that ``[MASK]`` is compared with.
    """

    fit: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]
    types: Sequence[int]


def halves(texts: Sequence[Sequence[int]], documents: Sequence[int], words: Sequence[Sequence[int]]) -> Halves:
    """Divide texts of at least two documents into the two halves, and find the most frequent words of one token.

    Args:
        words: number of the word of each token, ascending; negative for special tokens.
    """
    order = {document: number for number, document in enumerate(dict.fromkeys(documents))}
    parts: tuple[list, list] = ([], [])
    counts: Counter[int] = Counter()
    for text, document, of_text in zip(texts, documents, words, strict=True):
        parts[order[document] % 2].append(text)
        alone = {word for word, count in Counter(of_text).items() if count == 1 and word >= 0}
        counts.update(int(index) for index, word in zip(text, of_text, strict=True) if word in alone)
    return Halves(*parts, [index for index, _ in counts.most_common(TYPES)])


class _Moments:
    """Second moments of a layer: of real tokens in the two halves, of ``[MASK]``, of each type and of each group."""

    def __init__(self, dim: int, types: int):
        self.fit, self.held_out, self.mask = (SecondMoments(dim) for _ in range(3))
        self.fit_types, self.held_out_types = SecondMoments(dim, types), SecondMoments(dim, types)
        self.groups = SecondMoments(dim, GROUPS)


def exclusivity(
    encoder: EncoderStates,
    texts: Halves,
    keep: Sequence[int],
    mask_prob: float = 0.15,
    seed: int = 1,
    progress: Callable[[Sequence, str], Iterable] = lambda steps, name: steps,
    keep_moments: Callable[[int, str, SecondMoments], None] = lambda *moments: None,
) -> list[dict[str, Any]]:
    """Measure the exclusivity of ``[MASK]`` and its controls in every layer.

    ``[MASK]`` stands in the held-out texts, and passes through all layers, also of an encoder that did not see it in
    pretraining.

    Args:
        keep: ids of special tokens, which are never masked, but are real tokens.
        progress: iterates over the given steps, and may show progress under the given name.
        keep_moments: is called with layer, "fit", "held_out" or "mask", and their second moments.

    Returns:
        For each layer ``layer``; for each threshold T ``mask_T`` and ``held_out_T``, the shares outside of U,
        ``exclusivity_T``, their difference, and ``dimensions_T`` of U; ``types``, the same difference for each type;
        ``type_quantile``, the fraction of types below ``[MASK]``; ``groups``, the difference for each random group of
        real tokens. Layers that do not see ``[MASK]`` have ``layer`` only.
    """
    moments = [_Moments(encoder.dim, len(texts.types)) for _ in range(encoder.layers + 1)]
    for ids, _ in progress(masked_batches(texts.fit, encoder.pad, keep, 0.0, seed), "fit"):
        for of_layer, (states, index) in zip(moments, encoder(ids, see_masks=False), strict=True):
            of_layer.fit.add(states)
            _add_types(of_layer.fit_types, states, ids.flatten()[index], texts.types)
    _add_held_out(encoder, moments, texts, keep, mask_prob, seed, progress)
    rows = []
    for layer, of_layer in enumerate(moments):
        for name in ("fit", "held_out", "mask"):
            keep_moments(layer, name, getattr(of_layer, name))
        rows.append({"layer": layer} | (_shares(of_layer) if of_layer.mask.count else {}))
    return rows


def _add_types(moments: SecondMoments, states: Tensor, ids: Tensor, types: Sequence[int]) -> None:
    for number, index in enumerate(types):
        moments.add(states[(ids == index).to(states.device)], number)


def _add_held_out(encoder, moments, texts: Halves, keep, mask_prob, seed, progress) -> None:
    masked = masked_batches(texts.held_out, encoder.pad, keep, mask_prob, seed)
    members = _groups(sum(map(len, texts.held_out)), sum(int(batch.is_masked.sum()) for batch in masked), seed)
    done = 0
    for batch in progress(masked, "held-out"):
        for of_layer, (states, index) in zip(moments, encoder(batch.tokens, see_masks=False), strict=True):
            of_layer.held_out.add(states)
            _add_types(of_layer.held_out_types, states, batch.tokens.flatten()[index], texts.types)
            for group, chosen in enumerate(members[:, done : done + len(states)]):
                of_layer.groups.add(states[chosen.to(states.device)], group)
        done += int(batch.tokens.ne(encoder.pad).sum())
        corrupted, is_masked = batch.tokens.masked_fill(batch.is_masked, encoder.mask), batch.is_masked.flatten()
        see_masks = "forced" in encoder.inputs
        for of_layer, (states, index) in zip(moments, encoder(corrupted, see_masks), strict=True):
            of_layer.mask.add(states[is_masked[index].to(states.device)])


def _groups(tokens: int, size: int, seed: int) -> Tensor:
    """Return which tokens belong to each of :data:`GROUPS` random groups, bool[groups, tokens]."""
    generator, members = np.random.default_rng(seed), np.zeros((GROUPS, tokens), dtype=bool)
    for group in members:
        group[generator.choice(tokens, min(size, tokens), replace=False)] = True
    return torch.from_numpy(members)


def _shares(moments: _Moments) -> dict[str, Any]:
    fit, held_out, mask = (each.products[0] for each in (moments.fit, moments.held_out, moments.mask))
    found: dict[str, Any] = {}
    for threshold in THRESHOLDS:
        basis = subspace(fit, threshold)
        outside = {"mask": fraction_outside(mask, basis), "held_out": fraction_outside(held_out, basis)}
        outside["exclusivity"] = outside["mask"] - outside["held_out"]
        found |= {f"{name}_{threshold:g}": value for name, value in outside.items()}
        found[f"dimensions_{threshold:g}"] = basis.shape[1]
    first = THRESHOLDS[0]
    basis, of_mask = subspace(fit, first), found[f"exclusivity_{first:g}"]
    groups = [fraction_outside(group, basis) - found[f"held_out_{first:g}"] for group in moments.groups.products]
    types = []
    for of_fit, of_held_out in zip(moments.fit_types.products, moments.held_out_types.products, strict=True):
        if of_held_out.any():  # else it does not occur there
            others = subspace(fit - of_fit, first)
            types.append(fraction_outside(of_held_out, others) - fraction_outside(held_out - of_held_out, others))
    quantile = float(np.mean([of_type < of_mask for of_type in types])) if types else float("nan")
    return found | {"types": types, "type_quantile": quantile, "groups": groups}
