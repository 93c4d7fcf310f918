"""Scores of sentences: a model's pseudo-log-likelihood, and the controls that know no grammar."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from mae_lm_fairseq.measures.masked_prediction import (
    NEVER_MASKED,
    Predictor,
    Words,
    each_token,
    each_token_and_later_subwords,
    predict,
)


def pseudo_log_likelihoods(
    model: Predictor,
    sentences: Sequence[Words],
    mask_words: bool = False,
    progress: Callable[[Sequence], Iterable] = lambda batches: batches,
) -> np.ndarray:
    """Return the sum of each token's log-probability given all other tokens of its sentence, in nats.

    Args:
        model: the model.
        sentences: sentences as tokens; special tokens are not scored.
        mask_words: while a token is predicted, also mask the later subwords of its word, so that they do not reveal it.
        progress: wraps the sequence of batches, for example to show a progress bar.

    Returns:
        float64[sentences].
    """
    masking = each_token_and_later_subwords if mask_words else each_token
    maskings = [masking(sentence.words) for sentence in sentences]
    return predict(model, [sentence.ids for sentence in sentences], maskings, progress).log_likelihoods


def unigram_log_likelihoods(sentences: Sequence[Words], counts: Mapping[int, int]) -> np.ndarray:
    """Return the sum of each token's log-probability by its frequency alone, with add-one smoothing.

    Args:
        sentences: as for :func:`pseudo_log_likelihoods`.
        counts: how often each id occurs in a text.
    """
    total = sum(counts.values()) + len(counts) + 1
    return np.array([sum(math.log((counts.get(index, 0) + 1) / total) for index in _scored(x)) for x in sentences])


def negative_lengths(sentences: Sequence[Words]) -> np.ndarray:
    """Return minus the number of scored tokens: the order of sentences if every token is equally likely."""
    return -np.array([len(_scored(sentence)) for sentence in sentences], dtype=np.float64)


def _scored(sentence: Words) -> list[int]:
    return sentence.ids[sentence.words != NEVER_MASKED].tolist()
