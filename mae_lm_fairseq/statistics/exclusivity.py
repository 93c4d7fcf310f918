"""Exclusivity: how much of the sum of squares of ``[MASK]`` lies in directions that real tokens do not use.

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

from mae_lm_fairseq.statistics.effective_rank import SecondMoments, fraction_outside, ignore_moments, subspace
from mae_lm_fairseq.statistics.token_states import EncoderStates, MaskedBatch, masked_batches

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
    fit, held_out = [], []
    order = {document: number for number, document in enumerate(dict.fromkeys(documents))}
    counts: Counter[int] = Counter()
    for text, document, word_numbers in zip(texts, documents, words, strict=True):
        half = held_out if order[document] % 2 else fit
        half.append(text)
        tokens_of_word = Counter(word_numbers)
        for index, word in zip(text, word_numbers, strict=True):
            if word >= 0 and tokens_of_word[word] == 1:
                counts[int(index)] += 1
    return Halves(fit, held_out, types=[index for index, _ in counts.most_common(TYPES)])


class _LayerMoments:
    """Second moments of a layer: of real tokens in the two halves, of ``[MASK]``, of each type and of each group."""

    def __init__(self, dim: int, types: int):
        self.fit = SecondMoments(dim)
        self.held_out = SecondMoments(dim)
        self.mask = SecondMoments(dim)
        self.fit_types = SecondMoments(dim, types)
        self.held_out_types = SecondMoments(dim, types)
        self.groups = SecondMoments(dim, GROUPS)


def exclusivity_profile(
    encoder: EncoderStates,
    texts: Halves,
    special_ids: Sequence[int],
    mask_prob: float = 0.15,
    seed: int = 1,
    progress: Callable[[Sequence, str], Iterable] = lambda steps, name: steps,
    keep_moments: Callable[[int, str, SecondMoments], None] = ignore_moments,
) -> list[dict[str, Any]]:
    """Measure the exclusivity of ``[MASK]`` and its controls in every layer.

    ``[MASK]`` stands in the held-out texts, and passes through all layers, also of an encoder that did not see it in
    pretraining.

    Args:
        special_ids: ids that are never masked, but are real tokens.
        progress: iterates over the given steps, and may show progress under the given name.
        keep_moments: is called with layer, "fit", "held_out" or "mask", and their second moments.

    Returns:
        For each layer ``layer``; for each threshold T ``mask_T`` and ``held_out_T``, the shares outside of U,
        ``exclusivity_T``, their difference, and ``dimensions_T`` of U; ``types``, the same difference for each type;
        ``type_quantile``, the fraction of types below ``[MASK]``; ``groups``, the difference for each random group of
        real tokens. Layers that do not see ``[MASK]`` have ``layer`` only.
    """
    layers = [_LayerMoments(encoder.dim, len(texts.types)) for _ in range(encoder.layers + 1)]
    fit_batches = masked_batches(texts.fit, encoder.pad, special_ids, 0.0, seed)
    for tokens, _ in progress(fit_batches, "fit"):
        for moments, (states, index) in zip(layers, encoder(tokens, see_masks=False), strict=True):
            moments.fit.add(states)
            _add_types(moments.fit_types, states, tokens.flatten()[index], texts.types)

    held_out_batches = masked_batches(texts.held_out, encoder.pad, special_ids, mask_prob, seed)
    groups = _groups(texts.held_out, held_out_batches, seed)
    done = 0
    for batch in progress(held_out_batches, "held-out"):
        _add_held_out(encoder, layers, batch.tokens, texts.types, groups[:, done:])
        _add_masked(encoder, layers, batch)
        done += int(batch.tokens.ne(encoder.pad).sum())

    rows = []
    for layer, moments in enumerate(layers):
        keep_moments(layer, "fit", moments.fit)
        keep_moments(layer, "held_out", moments.held_out)
        keep_moments(layer, "mask", moments.mask)
        shares = _shares(moments) if moments.mask.count else {}
        rows.append({"layer": layer, **shares})
    return rows


def _add_types(moments: SecondMoments, states: Tensor, ids: Tensor, types: Sequence[int]) -> None:
    for number, index in enumerate(types):
        is_type = (ids == index).to(states.device)
        moments.add(states[is_type], number)


def _add_held_out(
    encoder: EncoderStates, layers: Sequence[_LayerMoments], tokens: Tensor, types: Sequence[int], groups: Tensor
) -> None:
    """Add the states of a batch of held-out texts without ``[MASK]``; ``groups`` begins with its first token."""
    for moments, (states, index) in zip(layers, encoder(tokens, see_masks=False), strict=True):
        moments.held_out.add(states)
        _add_types(moments.held_out_types, states, tokens.flatten()[index], types)
        for number, members in enumerate(groups[:, : len(states)]):
            moments.groups.add(states[members.to(states.device)], number)


def _add_masked(encoder: EncoderStates, layers: Sequence[_LayerMoments], batch: MaskedBatch) -> None:
    """Add the states of ``[MASK]`` in a batch of held-out texts."""
    tokens = batch.tokens.masked_fill(batch.is_masked, encoder.mask)
    is_masked = batch.is_masked.flatten()
    for moments, (states, index) in zip(layers, encoder(tokens, "forced" in encoder.inputs), strict=True):
        moments.mask.add(states[is_masked[index].to(states.device)])


def _groups(texts: Sequence[Sequence[int]], batches: Sequence[MaskedBatch], seed: int) -> Tensor:
    """Return which tokens belong to each of :data:`GROUPS` random groups, bool[groups, tokens].

    A group is as large as the number of ``[MASK]`` tokens, or has all tokens.
    """
    tokens = sum(map(len, texts))
    masked = sum(int(batch.is_masked.sum()) for batch in batches)
    size = min(masked, tokens)
    generator = np.random.default_rng(seed)
    groups = np.zeros((GROUPS, tokens), dtype=bool)
    for group in groups:
        group[generator.choice(tokens, size, replace=False)] = True
    return torch.from_numpy(groups)


def _shares(moments: _LayerMoments) -> dict[str, Any]:
    """Return the values of a layer, see :func:`exclusivity_profile`."""
    fit = moments.fit.products[0]
    held_out = moments.held_out.products[0]
    mask = moments.mask.products[0]
    bases = {threshold: subspace(fit, threshold) for threshold in THRESHOLDS}
    shares: dict[str, Any] = {}
    for threshold, basis in bases.items():
        mask_share = fraction_outside(mask, basis)
        held_out_share = fraction_outside(held_out, basis)
        shares[f"mask_{threshold:g}"] = mask_share
        shares[f"held_out_{threshold:g}"] = held_out_share
        shares[f"exclusivity_{threshold:g}"] = mask_share - held_out_share
        shares[f"dimensions_{threshold:g}"] = basis.shape[1]

    first = THRESHOLDS[0]
    group_shares = [fraction_outside(group, bases[first]) for group in moments.groups.products]
    groups = [share - shares[f"held_out_{first:g}"] for share in group_shares]
    types = _type_exclusivities(moments)
    is_below = [exclusivity < shares[f"exclusivity_{first:g}"] for exclusivity in types]
    quantile = float(np.mean(is_below)) if types else float("nan")
    return shares | {"types": types, "type_quantile": quantile, "groups": groups}


def _type_exclusivities(moments: _LayerMoments) -> list[float]:
    """Return the exclusivity of each type that the held-out texts have, which is left out of the fit."""
    fit = moments.fit.products[0]
    held_out = moments.held_out.products[0]
    exclusivities = []
    for fit_type, held_out_type in zip(moments.fit_types.products, moments.held_out_types.products, strict=True):
        if held_out_type.any():
            basis = subspace(fit - fit_type, THRESHOLDS[0])
            share = fraction_outside(held_out_type, basis)
            share_of_others = fraction_outside(held_out - held_out_type, basis)
            exclusivities.append(share - share_of_others)
    return exclusivities
