"""Scores of sentences (a model's pseudo-log-likelihood, and controls that know no grammar) and accuracy on pairs."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.measures.masked_prediction import (
    NEVER_MASKED,
    Predictor,
    Words,
    each_token,
    each_token_and_later_subwords,
    predict,
)
from mae_lm_fairseq.measures.minimal_pairs.files import Paradigm
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bar

TIE = 1e-4
"""Scores that differ by at most this are tied, and count one half. Sums of float32 log-probabilities differ by less
when the same sentence is computed in another batch."""
SETTINGS = {
    "tie": TIE,
    "resamples": RESAMPLES,
    "bootstrap_seed": BOOTSTRAP_SEED,
    "random_weights_seed": RANDOM_SEED,
}
"""What results depend on, beside options and data."""
_POINTS = np.array([0, 0.5, 1])
"""For a pair that is wrong, tied, right."""


def score(
    reader: Reader, paradigms: Sequence[Paradigm], mask_words: bool, counts: Mapping[int, int] | None, label: str
) -> dict[str, dict[str, Any]]:
    """Return the :func:`accuracies` of a model (``model``), of sentence ``length`` and, with counts, of ``unigram``.

    Args:
        reader: the model, opened with its head.
        paradigms: the pairs.
        mask_words: as for :func:`pseudo_log_likelihoods`.
        counts: how often each id occurs in a text.
        label: name of the model in the progress display.

    Raises:
        UserError: if a sentence is too long for the model.
    """
    sentences = [reader.sentence(text) for paradigm in paradigms for pair in paradigm.pairs for text in pair]
    longest, most = max(len(sentence.ids) for sentence in sentences), reader.predictor.max_tokens
    if longest > most:
        raise UserError(f"--pairs: a sentence has {longest} tokens, and {reader.path} takes at most {most}; remove it")
    progress = partial(progress_bar, desc=label)
    found = {"model": pseudo_log_likelihoods(reader.predictor, sentences, mask_words, progress)}
    if counts:
        found["unigram"] = unigram_log_likelihoods(sentences, counts)
    found["length"] = negative_lengths(sentences)
    return {name: accuracies(paradigms, scores.reshape(-1, 2)) for name, scores in found.items()}


def token_counts(reader: Reader, data_bin: Path | None, text: Path | None) -> Mapping[int, int] | None:
    """Return how often each id occurs in a text, or else in a checkpoint's training data."""
    if text:
        lines = progress_bar(read_text(text), desc=f"tokens of {text}", unit=" lines")
        return Counter(index for line in lines for index in reader.encode(line))
    if reader.path.is_dir():
        return None
    counts = read_counts(data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None


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


def accuracies(paradigms: Sequence[Paradigm], scores: np.ndarray) -> dict[str, Any]:
    """Return the accuracy of each paradigm, of each field and overall, as JSON-serialisable data.

    Every paradigm counts the same in its field and overall, as in BLiMP's own tables. The 95 % intervals come from
    resampling the pairs of each paradigm.

    Args:
        paradigms: the pairs.
        scores: float[pairs, 2], of the grammatical and the ungrammatical sentence, paradigm by paradigm.

    Returns:
        ``overall``, and by name ``fields`` and ``paradigms``: for each ``accuracy``, ``low`` and ``high`` in [0, 1],
        ``pairs``, and ``ties``, how many of them were tied.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    ends = np.cumsum([len(paradigm.pairs) for paradigm in paradigms])
    parts = [_counts(part) for part in np.split(scores, ends[:-1])]
    means = [_resampled(counts, generator) for counts in parts]
    fields = np.array([paradigm.field for paradigm in paradigms])

    def over(chosen: Sequence[int]) -> dict[str, Any]:
        return _row([parts[index] for index in chosen], [means[index] for index in chosen])

    return {
        "overall": over(range(len(paradigms))),
        "fields": {field: over(np.flatnonzero(fields == field)) for field in np.unique(fields).tolist()},
        "paradigms": {paradigm.name: over([index]) for index, paradigm in enumerate(paradigms)},
    }


def _counts(scores: np.ndarray) -> np.ndarray:
    margin = scores[:, 0] - scores[:, 1]
    return np.array([(margin < -TIE).sum(), (np.abs(margin) <= TIE).sum(), (margin > TIE).sum()])


def _resampled(counts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return float64[1 + RESAMPLES]: the accuracy, and that of each resample."""
    # Pairs drawn with replacement are wrong, tied and right as often as a multinomial draw says.
    drawn = generator.multinomial(counts.sum(), counts / counts.sum(), RESAMPLES)
    return np.vstack([counts, drawn]) @ _POINTS / counts.sum()


def _row(counts: list[np.ndarray], means: list[np.ndarray]) -> dict[str, Any]:
    accuracy, *resampled = np.mean(means, axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    pairs, (_, ties, _) = int(np.sum(counts)), np.sum(counts, axis=0)
    return {"accuracy": float(accuracy), "low": float(low), "high": float(high), "pairs": pairs, "ties": int(ties)}
