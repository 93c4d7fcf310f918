"""Gaps of ranks where the rank of clean text differs from layer to layer."""

import torch.nn.functional as F

from mae_lm_fairseq.statistics.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.statistics.token_states import LayerStates
from tests.support.networks import BOS, MASK, PAD

DIM = 12
ADDED = 3
"""Directions that real tokens have more beside ``[MASK]``."""


class KnownStates:
    """Encoder in which real tokens of clean text have one direction in layer 0, and one more in each further layer."""

    inputs = ("clean", "as_trained")
    layers, dim, max_tokens, pad, mask = 4, DIM, 64, PAD, MASK

    def __call__(self, tokens, see_masks):
        index = tokens.flatten().ne(self.pad).nonzero().squeeze(1)
        ids = tokens.flatten()[index]
        added = ADDED if ids.eq(self.mask).any() else 0
        directions = [1 + layer + added for layer in range(self.layers + 1)]
        return [LayerStates(F.one_hot(ids % number, DIM).float(), index) for number in directions]


def test_a_gap_is_that_to_clean_text_in_the_same_layer():
    texts = [[BOS, *(2 + (row + place) % 24 for place in range(30))] for row in range(40)]
    profile = rank_profile(KnownStates(), texts, special_ids=[BOS], settings=RankSettings(bootstrap=2))
    clean = [row["numerical"] for row in profile["ranks"] if row["input"] == "clean"]
    assert clean == [1, 2, 3, 4, 5]
    assert [(row["layer"], row["numerical"]) for row in profile["gaps"]] == [(layer, ADDED) for layer in range(5)]
