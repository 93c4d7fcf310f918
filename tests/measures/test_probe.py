"""Probes, against a loop over sentences."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from mae_lm_fairseq.measures.probe import accuracy_with_interval, first_subwords, fitted, lookup, predicts, token_states
from mae_lm_fairseq.statistics.token_states import EncoderStates
from tests.support.networks import MASK, PAD, network, text

TEXTS = [text(length, seed).tolist() for seed, length in enumerate((9, 4, 9, 2, 15))]
POSITIONS = [[1, 2, 2, 8], [3], [], [1], [1, 5, 14]]


@pytest.mark.parametrize("layers", [range(4), range(1, 3)])
def test_states_equal_a_loop(layers):
    encoder = EncoderStates(network("mae_lm").encoder, PAD, MASK)
    found = token_states(encoder, TEXTS, POSITIONS, layers, list)
    for layer, states in zip(layers, found, strict=True):
        expected = []
        for ids, positions in zip(TEXTS, POSITIONS, strict=True):
            expected += encoder(torch.tensor([ids]), see_masks=False)[layer].states[positions]
        np.testing.assert_allclose(states, torch.stack(expected).numpy(), rtol=0, atol=1e-5)


def test_probe_equals_a_plain_regression():
    generator = np.random.default_rng(0)
    states = generator.normal(3, 2, (300, 5)).astype(np.float32)
    labels = np.array(["a", "b", "c"])[(states[:, :3] + generator.normal(0, 1, (300, 3))).argmax(1)]
    train, test = states[:200], states[200:]
    mean, std = train.mean(0), train.std(0)
    plain = LogisticRegression(max_iter=1000).fit((train - mean) / std, labels[:200])
    is_right = predicts(fitted(train, labels[:200].tolist()), test, labels[200:].tolist())
    assert is_right.tolist() == (plain.predict((test - mean) / std) == labels[200:]).tolist()
    assert 0.5 < is_right.mean() < 1


def test_first_subwords():
    spans = [(0, 2), (2, 5), (5, 6), (6, 8), (8, 8), (8, 12)]  # with white space; the last but one is empty
    assert first_subwords(spans, [0, 1, 3, 5, 7, 9, 12]) == [0, 0, 1, 2, 3, 5, 6]


def test_the_lookup_knows_words_alone():
    likely, ambiguous = lookup(["run", "run", "run", "a", "dog"], ["VERB", "NOUN", "VERB", "DET", "NOUN"])
    assert likely == {"run": "VERB", "a": "DET", "dog": "NOUN"}
    assert ambiguous == {"run"}


def test_intervals_resample_sentences():
    """Words of a sentence that are right or wrong together carry the information of one word."""
    correct = np.random.default_rng(0).random(500) < 0.6
    single = accuracy_with_interval(correct, np.arange(500))
    repeated = accuracy_with_interval(np.repeat(correct, 10), np.repeat(np.arange(500), 10))
    assert repeated == pytest.approx(single)
    error = (correct.mean() * (1 - correct.mean()) / 500) ** 0.5
    assert single["high"] - single["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
