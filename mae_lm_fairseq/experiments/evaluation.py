"""Masked language model loss, accuracy and pseudo-perplexity of trained models on a text."""

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mae_lm_fairseq.analysis.masked_prediction import (
    NEVER_MASKED,
    Masking,
    Outcome,
    Words,
    each_token,
    each_word,
    predict,
    unigram_entropy,
)
from mae_lm_fairseq.analysis.token_states import mask_texts
from mae_lm_fairseq.experiments.readers import Reader, checked_models, open_model
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.markdown import markdown_table
from mae_lm_fairseq.utils.progress import progress_bar
from mae_lm_fairseq.utils.versions import versions

LARGEST_PERPLEXITY = 1e12
"""Maximum of the perplexities that are reported; a larger one says nothing, and may not fit a float."""


def measure_models(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of all models of a command line as JSON-serialisable data, and show progress.

    Raises:
        UserError: if a model or the text cannot be read, or an option is out of range.
    """
    if not 0 < arguments.mask_prob < 1:
        raise UserError(f"--mask-prob {arguments.mask_prob} must be above 0 and below 1")
    paths = checked_models(arguments.models, arguments.labels, arguments.data_bin, arguments.ema, with_head=True)
    settings = ("ema", "tokens", "pseudo_tokens", "tokens_per_sample", "mask_prob", "seed")
    return {
        "versions": versions(),
        "text": str(arguments.text),
        "settings": {name: getattr(arguments, name) for name in settings},
        "models": {label: {"model": str(path), **measure(path, label, arguments)} for label, path in paths.items()},
    }


def table(models: dict[str, dict[str, Any]], mask_prob: float) -> str:
    """Return the numbers of models by label, from :func:`measure`, as a Markdown table."""
    header = [
        "model",
        f"loss at {mask_prob:.0%} masked (nats)",
        "unigram entropy (nats)",
        "accuracy",
        "pseudo-perplexity per token",
        "pseudo-perplexity per word",
    ]
    rows = [
        [
            label,
            f"{row['loss']:.3f}",
            f"{row['unigram_entropy']:.3f}",
            f"{row['accuracy']:.1%}",
            perplexity_cell(row["pseudo_perplexity_per_token"]),
            perplexity_cell(row["pseudo_perplexity_per_word"]),
        ]
        for label, row in models.items()
    ]
    return markdown_table(header, rows)


def perplexity(log_likelihood: float, count: int) -> float | None:
    """Return the perplexity of ``count`` tokens or words; None if it is above :data:`LARGEST_PERPLEXITY`.

    A line without spaces is one word, which can be as long as a sequence.
    """
    loss = -log_likelihood / count
    return math.exp(loss) if loss <= math.log(LARGEST_PERPLEXITY) else None


def perplexity_cell(value: float | None) -> str:
    """Format a perplexity."""
    return f"above {LARGEST_PERPLEXITY:.0e}" if value is None else f"{value:,.2f}"


def measure(path: Path, label: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of one model, and show progress.

    Args:
        path: the model.
        label: its name in the progress display.
        arguments: ``text``, ``data_bin``, ``ema``, and the options of ``mae-lm evaluate``.

    Raises:
        UserError: if the model or the text cannot be read, or nothing of the text is masked.
    """
    reader = open_model(path, arguments.data_bin, arguments.ema, with_head=True)
    texts, few = (
        reader.texts_with_words(arguments.text, arguments.tokens_per_sample, limit)
        for limit in (arguments.tokens, arguments.pseudo_tokens)
    )

    def outcome(texts: Sequence[Words], maskings: Sequence[Masking], name: str) -> Outcome:
        progress = partial(progress_bar, desc=f"{label}, {name}")
        return predict(reader.predictor, [text.ids for text in texts], maskings, progress)

    fixed = [_fixed_positions(text, number, reader, arguments) for number, text in enumerate(texts)]
    masked = outcome(texts, fixed, "masked positions")
    predicted = int(masked.predicted.sum())
    if not predicted:
        fraction = f"{arguments.mask_prob:.3%} of a sequence"
        raise UserError(f"{arguments.text} is too short: {fraction} is less than one token; use a longer text")
    tokens = outcome(few, [each_token(text.words) for text in few], "tokens")
    whole_words = [each_word(text.words) for text in few]
    words = outcome(few, whole_words, "words")
    token_count, word_count = int(tokens.predicted.sum()), sum(len(masking.predicted) for masking in whole_words)
    return {
        "loss": -float(masked.log_likelihoods.sum()) / predicted,
        "unigram_entropy": unigram_entropy(text.ids[text.words != NEVER_MASKED] for text in texts),
        "accuracy": int(masked.correct.sum()) / predicted,
        "predicted": predicted,
        "pseudo_perplexity_per_token": perplexity(float(tokens.log_likelihoods.sum()), token_count),
        "tokens": token_count,
        "pseudo_perplexity_per_word": perplexity(float(words.log_likelihoods.sum()), word_count),
        "words": word_count,
    }


def _fixed_positions(text: Words, number: int, reader: Reader, arguments: argparse.Namespace) -> Masking:
    """Mask a fraction of a text's tokens in one row; in none if the fraction is less than one token."""
    arguments = [text.ids.tolist()], reader.predictor.pad, reader.special, arguments.mask_prob, arguments.seed
    row = mask_texts(*arguments, first=number).is_masked.numpy()
    rows = row[row.any(1)]
    return Masking(rows, rows)
