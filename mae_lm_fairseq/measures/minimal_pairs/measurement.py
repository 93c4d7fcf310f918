"""Accuracy of trained models and of their controls on minimal pairs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.measures.masked_prediction import Words
from mae_lm_fairseq.measures.minimal_pairs.files import Paradigm, read_paradigms
from mae_lm_fairseq.measures.minimal_pairs.scores import (
    RESAMPLES,
    SEED,
    TIE,
    accuracies,
    negative_lengths,
    pseudo_log_likelihoods,
    unigram_log_likelihoods,
)
from mae_lm_fairseq.measures.options import MinimalPairsOptions
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader, checked_models, open_model
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.text_files import find_files
from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import accuracy_cell, markdown_table, progress_bar
from mae_lm_fairseq.utils.versions import versions

CONTROLS = {
    "random weights": "the same architecture before training",
    "unigram": "the sum of the tokens' log-frequencies",
    "length": "the sentence with fewer tokens wins",
}
"""The controls of every model, and what they are."""


def measure_models(options: MinimalPairsOptions) -> dict[str, Any]:
    """Return the content of ``results.json`` and show progress.

    Raises:
        UserError: if a model or a file cannot be read, or a sentence is too long for a model.
    """
    paradigms = read_paradigms(options.pairs, options.limit)
    if options.unigram:
        find_files([options.unigram])  # refuses a missing file before the hours of scoring
    paths = checked_models(options, with_head=True)
    random_weights, models = {}, {}
    for label, path in paths.items():
        reader = open_model(path, options.data_bin, options.ema, with_head=True)
        counts = _token_counts(reader, options.data_bin, options.unigram)
        found = measure(reader, label, paradigms, options.mask_words, counts)
        if reader.architecture not in random_weights:
            untrained = open_model(path, options.data_bin, with_head=True, random_weights=True)
            control = measure(untrained, f"{label}, random weights", paradigms, options.mask_words)
            random_weights[reader.architecture] = control["model"]
        scores = {"model": found.pop("model"), "random weights": random_weights[reader.architecture], **found}
        models[label] = {"model": str(path), "scores": scores}
    pairs = sum(len(paradigm.pairs) for paradigm in paradigms)
    return {
        "versions": versions(),
        "pairs": {"directory": str(options.pairs), "limit": options.limit, "paradigms": len(paradigms), "pairs": pairs},
        "settings": {
            "ema": options.ema,
            "mask_words": options.mask_words,
            "tie": TIE,
            "resamples": RESAMPLES,
            "bootstrap_seed": SEED,
            "random_weights_seed": RANDOM_SEED,
        },
        "models": models,
    }


def measure(
    reader: Reader,
    label: str,
    paradigms: Sequence[Paradigm],
    mask_words: bool = False,
    counts: Mapping[int, int] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the accuracies of a model (``model``), of sentence length and, with counts, of token frequency.

    Args:
        reader: the model, opened with its head.
        label: its name in the progress display.
        paradigms: the pairs.
        mask_words: whether to mask the later subwords of a token's word with it.
        counts: how often each id occurs in a text.

    Raises:
        UserError: if a sentence is too long for the model.
    """
    sentences = _tokenised(reader, paradigms)

    def table(scores: np.ndarray) -> dict[str, Any]:
        return accuracies(paradigms, scores.reshape(-1, 2))

    scores = pseudo_log_likelihoods(reader.predictor, sentences, mask_words, partial(progress_bar, desc=label))
    tables = {"model": table(scores)}
    if counts:
        tables["unigram"] = table(unigram_log_likelihoods(sentences, counts))
    return tables | {"length": table(negative_lengths(sentences))}


def _tokenised(reader: Reader, paradigms: Sequence[Paradigm]) -> list[Words]:
    """Return the sentences of all pairs, the grammatical one of each first."""
    sentences = [reader.sentence(text) for paradigm in paradigms for pair in paradigm.pairs for text in pair]
    longest = max(len(sentence.ids) for sentence in sentences)
    if longest > reader.predictor.max_tokens:
        raise UserError(
            f"--pairs: a sentence has {longest} tokens, and {reader.path} takes at most {reader.predictor.max_tokens}; "
            "take the sentence out"
        )
    return sentences


def _token_counts(reader: Reader, data_bin: Path | None, text: Path | None) -> Mapping[int, int] | None:
    """Return how often each id occurs in a text, or else in a checkpoint's training data."""
    if text:
        lines = progress_bar(read_text(text), desc=f"tokens of {text}", unit=" lines")
        return Counter(index for line in lines for index in reader.encode(line))
    if reader.path.is_dir():
        return None
    counts = read_counts(data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None


def markdown(results: dict[str, Any]) -> str:
    """Return the report of all models."""
    pairs, settings = results["pairs"], results["settings"]
    masked = "masked with the later subwords of its word" if settings["mask_words"] else "masked on its own"
    head = [
        "# Minimal pairs",
        "",
        f"{pairs['pairs']:,} pairs of {pairs['paradigms']} paradigms from `{pairs['directory']}`. A pair is right if "
        "the grammatical sentence has the higher pseudo-log-likelihood: the sum of its tokens' log-probabilities, "
        f"each token {masked}. Scores that differ by at most {settings['tie']:g} are tied and count one half. Every "
        "paradigm counts the same. In brackets 95 % intervals "
        f"({settings['resamples']:,} bootstrap resamples of the pairs).",
        "",
        "Controls: " + "; ".join(f"*{name}*: {meaning}" for name, meaning in CONTROLS.items()) + ".",
        "",
        markdown_table(
            ["model", "accuracy", "ties", *CONTROLS],
            [_summary(label, model["scores"]) for label, model in results["models"].items()],
        ),
    ]
    return "\n".join([*head, *(line for model in results["models"].items() for line in _details(*model)), ""])


def _summary(label: str, scores: dict[str, Any]) -> list[str]:
    overall = {name: table["overall"] for name, table in scores.items()}
    controls = [accuracy_cell(overall[name]) if name in overall else "-" for name in CONTROLS]
    return [label, accuracy_cell(overall["model"]), f"{overall['model']['ties']:,}", *controls]


def _details(label: str, model: dict[str, Any]) -> list[str]:
    """Return the tables of one model by field and by paradigm."""
    scores = model["scores"]
    columns = ["model", *(name for name in CONTROLS if name in scores)]
    lines = ["", f"## {label}"]
    for kind in ("fields", "paradigms"):
        rows = [
            [name, f"{row['pairs']:,}", *(accuracy_cell(scores[column][kind][name]) for column in columns)]
            for name, row in scores["model"][kind].items()
        ]
        lines += ["", markdown_table([kind.removesuffix("s"), "pairs", *columns], rows)]
    return lines
