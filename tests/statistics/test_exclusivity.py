"""Exclusivity of ``[MASK]``: states with known answers, and a plain loop over tokens."""

from itertools import chain

import numpy as np
import pytest
import torch

from mae_lm_fairseq.statistics.exclusivity import GROUPS, Halves, exclusivity_profile, halves
from mae_lm_fairseq.statistics.token_states import EncoderStates, LayerStates, mask_texts
from tests.support.networks import BOS, MASK, PAD, network, text

DIM = 8


class KnownStates:
    """Encoder whose real tokens lie in three directions; ``[MASK]`` has a part of its energy in a fourth one.

    The part is 0, 1/4, ..., 1 in layers 0 to 4. Token 2 alone lies in direction 2.
    """

    inputs = ("clean", "as_trained")
    layers, dim, max_tokens, pad, mask = 4, DIM, 64, PAD, MASK

    def __call__(self, tokens, see_masks):
        index = tokens.flatten().ne(self.pad).nonzero().squeeze(1)
        ids = tokens.flatten()[index]
        directions = torch.eye(DIM)
        real = directions[torch.where(ids == 2, 2, ids % 2)]
        found = []
        for layer in range(self.layers + 1):
            part = layer / self.layers
            of_mask = (1 - part) ** 0.5 * directions[0] + part**0.5 * directions[3]
            found.append(LayerStates(torch.where((ids == self.mask)[:, None], of_mask, real), index))
        return found


TEXTS = [[BOS, *([2 + (row + place) % 4 for place in range(16)])] for row in range(12)]


def test_known_states():
    rows = exclusivity_profile(KnownStates(), Halves(TEXTS[::2], TEXTS[1::2], [2, 3]), special_ids=[BOS])
    for row in rows:
        assert row["dimensions_0.9"] == row["dimensions_0.99"] == 3
        for threshold in ("0.9", "0.99"):
            assert row[f"held_out_{threshold}"] == pytest.approx(0, abs=1e-9)
            assert (
                row[f"mask_{threshold}"] == row[f"exclusivity_{threshold}"] == pytest.approx(row["layer"] / 4, abs=1e-7)
            )
        # Without token 2, no other one lies in its direction; token 3 has the same direction as token 5.
        assert row["types"] == [pytest.approx(1), pytest.approx(0)]
        assert row["type_quantile"] == (0.5 if row["layer"] > 0 else 0)
        assert row["groups"] == [pytest.approx(0, abs=1e-9)] * GROUPS


@pytest.mark.parametrize("preset", ["mae_lm_roberta", "mae_lm"])
def test_it_equals_a_plain_loop(preset):
    """Everything from the states of one text at a time, by NumPy alone."""
    encoder = EncoderStates(network(preset).encoder, PAD, MASK)
    texts = [text(length, seed).tolist() for seed, length in enumerate((12, 20, 15, 24, 22, 18, 24, 24))]
    fit, held_out = texts[::2], texts[1::2]
    types = sorted({*chain(*fit)} & {*chain(*held_out)} - {BOS})[:3]
    rows = exclusivity_profile(encoder, Halves(fit, held_out, types), special_ids=[BOS], mask_prob=0.3, seed=4)
    forced = preset == "mae_lm"

    def states(ids: list[int], layer: int, see_masks: bool = False) -> np.ndarray:
        return encoder(torch.tensor([ids]), see_masks)[layer].states.double().numpy()

    def space(matrix: np.ndarray, threshold: float) -> np.ndarray:
        left, values, _ = np.linalg.svd(matrix.T, full_matrices=False)
        return left[:, : np.searchsorted(np.cumsum(values**2) / (values**2).sum(), threshold - 1e-9) + 1]

    def outside(matrix: np.ndarray, basis: np.ndarray) -> float:
        return 1 - ((matrix @ basis) ** 2).sum() / (matrix**2).sum()

    for row in rows:
        layer = row["layer"]
        in_fit = np.concatenate([states(ids, layer) for ids in fit])
        in_held_out = np.concatenate([states(ids, layer) for ids in held_out])
        masks = []
        for number, ids in enumerate(held_out):
            is_masked = mask_texts([ids], PAD, [BOS], 0.3, 4, number).is_masked[0].numpy()
            corrupted = np.where(is_masked, MASK, ids).tolist()
            masks.append(states(corrupted, layer, see_masks=forced)[is_masked])
        of_mask = np.concatenate(masks)
        for threshold in (0.9, 0.99):
            basis = space(in_fit, threshold)
            assert row[f"dimensions_{threshold:g}"] == basis.shape[1]
            # States are float32; batches of several texts round differently.
            assert row[f"mask_{threshold:g}"] == pytest.approx(outside(of_mask, basis), abs=1e-6)
            assert row[f"held_out_{threshold:g}"] == pytest.approx(outside(in_held_out, basis), abs=1e-6)
        for number, index in enumerate(types):
            is_type, held_out_type = (np.isin(np.concatenate(part), index) for part in (fit, held_out))
            basis = space(in_fit[~is_type], 0.9)
            expected = outside(in_held_out[held_out_type], basis) - outside(in_held_out[~held_out_type], basis)
            assert row["types"][number] == pytest.approx(expected, abs=1e-6)
        below = np.mean(np.array(row["types"]) < row["exclusivity_0.9"])
        assert row["type_quantile"] == below
        assert len(set(row["groups"])) == GROUPS
        assert np.mean(row["groups"]) == pytest.approx(0, abs=0.05)


def test_layers_without_masks_have_no_numbers():
    class Unmasked(KnownStates):
        def __call__(self, tokens, see_masks):
            found = super().__call__(tokens, see_masks)
            is_mask = tokens.flatten()[found[0].index] == self.mask
            return [LayerStates(found[0].states[~is_mask], found[0].index[~is_mask]), *found[1:]]

    first, second, *_ = exclusivity_profile(Unmasked(), Halves(TEXTS[::2], TEXTS[1::2], [2]), special_ids=[BOS])
    assert first == {"layer": 0}
    assert "exclusivity_0.9" in second


def test_halves_are_documents_in_turn_and_types_are_words_of_one_token():
    texts = [[0, 5, 6, 5], [0, 5], [0, 7], [0, 6]]
    words = [[-1, 1, 2, 3], [-1, 1], [-1, 1], [-1, 1]]
    found = halves(texts, [3, 3, 4, 9], words)
    assert (found.fit, found.held_out) == ([texts[0], texts[1], texts[3]], [texts[2]])
    assert found.types[:2] == [5, 6]
    # The same tokens as parts of one word are no types.
    assert halves(texts, [3, 3, 4, 9], [[-1, 1, 1, 1], *words[1:]]).types == [5, 7, 6]
