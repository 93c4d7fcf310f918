"""Minimal pairs of BLiMP (Warstadt et al., 2020) and Zorro (Huebner et al., 2021): files, scores and accuracies.

Sentences are scored by a model's pseudo-log-likelihood, and by controls that know no grammar.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mae_lm_fairseq.measures.masked_prediction import NEVER_MASKED, Words, pseudo_log_likelihoods
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.text_samples import evenly_spaced, read_lines, read_text
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


class Pair(NamedTuple):
    """A grammatical sentence, and an ungrammatical one that differs from it as little as possible."""

    good: str
    bad: str


class Paradigm(NamedTuple):
    """Pairs of one construction, and the field of grammar that it belongs to."""

    name: str
    field: str
    pairs: list[Pair]


def read_paradigms(directory: Path, limit: int | None = None) -> list[Paradigm]:
    """Read the files of a directory in the layout of BLiMP (``*.jsonl``) or of Zorro (``*.txt``), by field.

    Args:
        limit: number of pairs of each file, evenly spaced, as neighbours are alike in Zorro; None for all.

    Raises:
        UserError: if there are files in both layouts or in neither, or a file is invalid.
    """
    blimp, zorro = sorted(directory.glob("*.jsonl")), sorted(directory.glob("*.txt"))
    if bool(blimp) == bool(zorro):
        raise UserError(
            f"--pairs {directory}: must hold either BLiMP's files (*.jsonl) or Zorro's (*.txt), and holds "
            f"{len(blimp)} and {len(zorro)} of them"
        )
    paradigms = []
    for path in blimp or zorro:
        lines = [line.strip() for line in read_lines(path) if line.strip()]
        try:
            name, field, pairs = _blimp(lines) if blimp else _zorro(path.stem, lines)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path}: damaged, or not minimal pairs ({error}); restore the file") from None
        paradigms.append(Paradigm(name, field, evenly_spaced(pairs, limit)))
    return sorted(paradigms, key=lambda paradigm: (paradigm.field, paradigm.name))


def _blimp(lines: list[str]) -> tuple[str, str, list[Pair]]:
    rows = list(map(json.loads, lines))
    [(name, field)] = {(row["UID"], row["field"]) for row in rows}
    # One of BLiMP's files says syntax/semantics, the others syntax_semantics.
    return name, field.replace("/", "_"), [Pair(row["sentence_good"], row["sentence_bad"]) for row in rows]


def _zorro(name: str, lines: list[str]) -> tuple[str, str, list[Pair]]:
    pairs = [Pair(good, bad) for bad, good in zip(lines[::2], lines[1::2], strict=True)]
    return name, name.partition("-")[0], pairs


def score(
    reader: Reader, paradigms: Sequence[Paradigm], mask_words: bool, counts: Mapping[int, int] | None, label: str
) -> dict[str, dict[str, Any]]:
    """Return the :func:`accuracies` of a model (``model``), of sentence ``length`` and, with counts, of ``unigram``.

    Args:
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
        return Counter(index for line in lines for index in reader.encode(line)[0])
    if reader.path.is_dir():
        return None
    counts = read_counts(data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None


def unigram_log_likelihoods(sentences: Sequence[Words], counts: Mapping[int, int]) -> np.ndarray:
    """Return the sum of each token's log-probability by its frequency alone, with add-one smoothing."""
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
