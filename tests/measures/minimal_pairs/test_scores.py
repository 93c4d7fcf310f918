"""Scores of sentences."""

import math

import numpy as np
import torch

from mae_lm_fairseq.measures.masked_prediction import NEVER_MASKED, Words
from mae_lm_fairseq.measures.minimal_pairs.files import Pair, Paradigm
from mae_lm_fairseq.measures.minimal_pairs.scores import (
    accuracies,
    negative_lengths,
    pseudo_log_likelihoods,
    unigram_log_likelihoods,
)


class Constant:
    """A model for which all tokens are equally likely."""

    max_tokens, pad, mask = 100, 1, 29

    def __call__(self, tokens, is_predicted):
        return torch.full((int(is_predicted.sum()), 30), 0.3)


def sentence(length: int, seed: int) -> Words:
    ids = np.random.default_rng(seed).integers(4, 29, length)
    return Words(np.array([0, *ids, 2]), np.array([NEVER_MASKED, *range(length), NEVER_MASKED]))


def test_constant_logits_give_the_length_baseline():
    """The baseline is computed here from the lengths alone."""
    lengths = np.random.default_rng(1).integers(3, 9, (40, 2))
    sentences = [sentence(length, seed) for seed, length in enumerate(lengths.reshape(-1).tolist())]
    good, bad = lengths.T
    expected = ((good < bad) + 0.5 * (good == bad)).mean()
    paradigm = Paradigm("a", "x", [Pair("", "")] * len(lengths))
    found = [
        accuracies([paradigm], scores.reshape(-1, 2))
        for scores in (
            pseudo_log_likelihoods(Constant(), sentences),
            pseudo_log_likelihoods(Constant(), sentences, mask_words=True),
            negative_lengths(sentences),
        )
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["overall"]["accuracy"] == expected
    assert found[0]["overall"]["ties"] == (good == bad).sum()


def test_unigram_log_likelihoods():
    text = Words(np.array([0, 5, 6, 5, 2]), np.array([NEVER_MASKED, 0, 1, 2, NEVER_MASKED]))
    [found] = unigram_log_likelihoods([text], {5: 7, 9: 2})
    assert math.isclose(found, 2 * math.log(8 / 12) + math.log(1 / 12))
