"""Predictions of masked tokens, against loops that mask one token or word at a time."""

import math

import numpy as np
import pytest
import torch

from mae_lm_fairseq.core.packing import batch_layout, seen_masks
from mae_lm_fairseq.trained.masked_prediction import (
    NEVER_MASKED,
    NetworkPredictor,
    Words,
    each_token,
    each_token_and_later_subwords,
    each_word,
    predict,
    unigram_entropy,
)
from tests.support.networks import EOS, MASK, PAD, network, text


def words(length: int, seed: int) -> Words:
    """Return a random text with words of one to three tokens."""
    starts = np.random.default_rng(seed).random(length - 2) < 0.6
    inside = np.cumsum(starts)
    return Words(np.array([*text(length - 1, seed).tolist(), EOS]), np.array([NEVER_MASKED, *inside, NEVER_MASKED]))


TEXTS = [words(length, seed) for seed, length in enumerate((9, 3, 14, 9, 2, 24))]


def hidden_in_loop(masking, text: Words):
    """Yield the positions to mask and those to predict, one row at a time."""
    scored = [position for position, word in enumerate(text.words) if word != NEVER_MASKED]
    if masking is each_word:
        for word in sorted({text.words[position] for position in scored}):
            together = [position for position in scored if text.words[position] == word]
            yield together, together
        return
    for position in scored:
        later = [other for other in scored if other > position and text.words[other] == text.words[position]]
        yield [position, *(later if masking is each_token_and_later_subwords else [])], [position]


def loop(log_probabilities, masking, text: Words) -> tuple[float, int, int]:
    """Return log-likelihood, number of predictions and of correct ones; one row in each call."""
    total, count, correct = 0.0, 0, 0
    for hidden, predicted in hidden_in_loop(masking, text):
        tokens = torch.tensor(text.ids)
        tokens[hidden] = MASK
        for position, row in zip(predicted, log_probabilities(tokens[None], predicted), strict=True):
            total += row[text.ids[position]].item()
            count += 1
            correct += int(row.argmax() == text.ids[position])
    return total, count, correct


def reference(model, is_early=None):
    """Return a function that returns log-probabilities at predicted positions of one row."""

    @torch.no_grad()
    def log_probabilities(tokens, predicted):
        is_predicted = torch.zeros_like(tokens, dtype=torch.bool)
        is_predicted[0, predicted] = True
        early = None if is_early is None else tokens.eq(MASK) & is_early[: tokens.shape[1]]
        return model(tokens, batch_layout(tokens, is_predicted, PAD, MASK, early)).log_softmax(-1)

    return log_probabilities


def check(model, log_probabilities, masking):
    predictions = predict(model, [text.ids for text in TEXTS], [masking(text.words) for text in TEXTS])
    expected = [loop(log_probabilities, masking, text) for text in TEXTS]
    np.testing.assert_allclose(predictions.log_likelihoods, [total for total, *_ in expected], rtol=0, atol=1e-5)
    assert predictions.predicted.tolist() == [count for _, count, _ in expected]
    assert predictions.correct.tolist() == [correct for *_, correct in expected]


@pytest.mark.parametrize("masking", [each_token, each_token_and_later_subwords, each_word])
@pytest.mark.parametrize(
    "variant", ["mae_lm", "mae_lm_roberta", "mae_lm_3ml_cross", "mae_lm_mask_later", "mae_lm_exlm_decoder"]
)
def test_predictions_equal_a_loop(variant, masking):
    model = network(variant).eval()
    check(NetworkPredictor(model, PAD, MASK), reference(model), masking)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_masks_in_the_encoder_are_there_as_in_training(fraction):
    model = network("mae_lm").eval()
    predictor = NetworkPredictor(model, PAD, MASK, fraction)
    is_early = seen_masks(torch.full((1, model.config.max_positions), MASK), MASK, fraction)[0]
    assert is_early.float().mean() == (1 if fraction == 1 else pytest.approx(0.5, abs=0.25))
    check(predictor, reference(model, is_early), each_token)
    ids, maskings = [text.ids for text in TEXTS], [each_token(text.words) for text in TEXTS]
    without = predict(NetworkPredictor(model, PAD, MASK), ids, maskings)
    assert not np.allclose(predict(predictor, ids, maskings).log_likelihoods, without.log_likelihoods)


def test_unigram_entropy_is_that_of_the_token_frequencies():
    texts = [np.array([0, 5, 5, 2, 0, 5, 2]), torch.tensor([5])]
    assert unigram_entropy(texts) == pytest.approx(1.5 * math.log(2))  # a quarter, a half, a quarter


def test_texts_without_words_have_no_predictions():
    predictions = predict(
        NetworkPredictor(network().eval(), PAD, MASK), [np.array([0, 2])], [each_token(np.array([-1, -1]))]
    )
    assert [x.tolist() for x in predictions] == [[0.0], [0], [0]]
