"""Accuracy of trained models and of their controls on minimal pairs."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.analysis.masked_prediction import Words
from mae_lm_fairseq.downstream.minimal_pairs.accuracy import RESAMPLES, SEED, TIE, accuracies
from mae_lm_fairseq.downstream.minimal_pairs.files import Paradigm, read_paradigms
from mae_lm_fairseq.downstream.minimal_pairs.scores import (
    negative_lengths,
    pseudo_log_likelihoods,
    unigram_log_likelihoods,
)
from mae_lm_fairseq.experiments.readers import RANDOM_SEED, Reader, checked_models, open_model
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.text_files import find_files
from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.progress import progress_bar
from mae_lm_fairseq.utils.versions import versions


def measure_models(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the content of ``results.json`` for the models of a command line, and show progress.

    Raises:
        UserError: if a model or a file cannot be read, or a sentence is too long for a model.
    """
    paradigms = read_paradigms(arguments.pairs, arguments.limit)
    if arguments.unigram:
        find_files([arguments.unigram])  # refuses a missing file before the hours of scoring
    paths = checked_models(arguments.models, arguments.labels, arguments.data_bin, arguments.ema, with_head=True)
    random_weights = {}
    models = {
        label: {"model": str(path), "scores": _measure(path, label, paradigms, arguments, random_weights)}
        for label, path in paths.items()
    }
    pairs = sum(len(paradigm.pairs) for paradigm in paradigms)
    return {
        "versions": versions(),
        "pairs": {
            "directory": str(arguments.pairs),
            "limit": arguments.limit,
            "paradigms": len(paradigms),
            "pairs": pairs,
        },
        "settings": {
            "ema": arguments.ema,
            "mask_words": arguments.mask_words,
            "tie": TIE,
            "resamples": RESAMPLES,
            "bootstrap_seed": SEED,
            "random_weights_seed": RANDOM_SEED,
        },
        "models": models,
    }


def _measure(
    path: Path,
    label: str,
    paradigms: Sequence[Paradigm],
    arguments: argparse.Namespace,
    random_weights: dict[Any, dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the accuracies of a model and of its controls.

    ``random_weights`` collects the accuracies with random weights by architecture, so that each is measured once.
    """
    reader = open_model(path, arguments.data_bin, arguments.ema, with_head=True)
    sentences = _tokenised(reader, paradigms, arguments.pairs)

    def table(scores: np.ndarray) -> dict[str, Any]:
        return accuracies(paradigms, scores.reshape(-1, 2))

    def likelihoods(reader: Reader, name: str) -> np.ndarray:
        progress = partial(progress_bar, desc=name)
        return pseudo_log_likelihoods(reader.predictor, sentences, arguments.mask_words, progress)

    tables = {"model": table(likelihoods(reader, label))}
    if reader.architecture not in random_weights:
        untrained = open_model(path, arguments.data_bin, with_head=True, random_weights=True)
        random_weights[reader.architecture] = table(likelihoods(untrained, f"{label}, random weights"))
    tables["random weights"] = random_weights[reader.architecture]
    if counts := _token_counts(reader, arguments):
        tables["unigram"] = table(unigram_log_likelihoods(sentences, counts))
    return tables | {"length": table(negative_lengths(sentences))}


def _tokenised(reader: Reader, paradigms: Sequence[Paradigm], directory: Path) -> list[Words]:
    """Return the sentences of all pairs, the grammatical one of each first."""
    sentences = [reader.sentence(text) for paradigm in paradigms for pair in paradigm.pairs for text in pair]
    longest = max(len(sentence.ids) for sentence in sentences)
    if longest > reader.predictor.max_tokens:
        raise UserError(
            f"--pairs {directory}: a sentence has {longest} tokens, and {reader.path} takes at most "
            f"{reader.predictor.max_tokens}; take the sentence out"
        )
    return sentences


def _token_counts(reader: Reader, arguments: argparse.Namespace) -> Mapping[int, int] | None:
    """Return how often each id occurs in the text of ``--unigram``, or else in a checkpoint's training data."""
    if arguments.unigram:
        lines = progress_bar(read_text(arguments.unigram), desc=f"tokens of {arguments.unigram}", unit=" lines")
        return Counter(index for line in lines for index in reader.encode(line))
    if reader.path.is_dir():
        return None
    counts = read_counts(arguments.data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None
