"""Masked language model loss, accuracy and pseudo-perplexity of trained models on a text."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.measures.masked_prediction import (
    NEVER_MASKED,
    Masking,
    Outcome,
    Words,
    each_token,
    each_word,
    predict,
    unigram_entropy,
)
from mae_lm_fairseq.measures.options import EvaluateOptions, Evaluation, MaskedText
from mae_lm_fairseq.measures.readers import Reader, checked_models, open_model
from mae_lm_fairseq.statistics.token_states import mask_texts
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import markdown_table, progress_bar
from mae_lm_fairseq.utils.versions import versions

LARGEST_PERPLEXITY = 1e12
"""Maximum of the perplexities that are reported; a larger one says nothing, and may not fit a float."""


def measure_models(options: EvaluateOptions) -> dict[str, Any]:
    """Return the numbers of all models as JSON-serialisable data, and show progress.

    Raises:
        UserError: if a model or the text cannot be read.
    """
    paths = checked_models(options, with_head=True)
    settings = ("ema", "tokens", "pseudo_tokens", "tokens_per_sample", "mask_prob", "seed")

    def measured(path: Path, label: str) -> dict[str, Any]:
        return measure(open_model(path, options.data_bin, options.ema, with_head=True), label, options)

    return {
        "versions": versions(),
        "text": str(options.text),
        "settings": {name: getattr(options, name) for name in settings},
        "models": {label: {"model": str(path), **measured(path, label)} for label, path in paths.items()},
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


def measure(reader: Reader, label: str, evaluation: Evaluation) -> dict[str, Any]:
    """Return loss, accuracy and pseudo-perplexities of a model, and show progress.

    Args:
        reader: the model, opened with its head.
        label: its name in the progress display.
        evaluation: what to predict.

    Raises:
        UserError: if the text cannot be read, or nothing of it is masked.
    """
    texts = reader.texts_with_words(evaluation.text, evaluation.tokens_per_sample, evaluation.pseudo_tokens)
    found = masked_prediction(reader, label, evaluation.text, evaluation)
    tokens = _outcome(reader, texts, [each_token(text.words) for text in texts], f"{label}, tokens")
    whole_words = [each_word(text.words) for text in texts]
    words = _outcome(reader, texts, whole_words, f"{label}, words")
    token_count, word_count = int(tokens.predicted.sum()), sum(len(masking.predicted) for masking in whole_words)
    return found | {
        "pseudo_perplexity_per_token": perplexity(float(tokens.log_likelihoods.sum()), token_count),
        "tokens": token_count,
        "pseudo_perplexity_per_word": perplexity(float(words.log_likelihoods.sum()), word_count),
        "words": word_count,
    }


def masked_prediction(reader: Reader, label: str, path: Path, sample: MaskedText) -> dict[str, float]:
    """Return loss and accuracy at the masked positions of a text, as :func:`measure` does."""
    texts = reader.texts_with_words(path, sample.tokens_per_sample, sample.tokens)
    fixed = [_fixed_positions(text, number, reader, sample) for number, text in enumerate(texts)]
    masked = _outcome(reader, texts, fixed, f"{label}, masked positions")
    predicted = int(masked.predicted.sum())
    if not predicted:
        fraction = f"{sample.mask_prob:.3%} of a sequence"
        raise UserError(f"{path} is too short: {fraction} is less than one token; use a longer text")
    return {
        "loss": -float(masked.log_likelihoods.sum()) / predicted,
        "unigram_entropy": unigram_entropy(text.ids[text.words != NEVER_MASKED] for text in texts),
        "accuracy": int(masked.correct.sum()) / predicted,
        "predicted": predicted,
    }


def _outcome(reader: Reader, texts: Sequence[Words], maskings: Sequence[Masking], name: str) -> Outcome:
    return predict(reader.predictor, [text.ids for text in texts], maskings, partial(progress_bar, desc=name))


def _fixed_positions(text: Words, number: int, reader: Reader, sample: MaskedText) -> Masking:
    """Mask a fraction of a text's tokens in one row; in none if the fraction is less than one token."""
    seed, fraction = sample.seed, sample.mask_prob
    masked = mask_texts([text.ids.tolist()], reader.predictor.pad, reader.special, fraction, seed, first=number)
    row = masked.is_masked.numpy()
    rows = row[row.any(1)]
    return Masking(rows, rows)


BATCH = 32


def load(checkpoint: Path, data: Path, **task_options) -> tuple[torch.nn.Module, object]:
    """Load a trained model in evaluation mode, and its task with the validation split.

    Args:
        checkpoint: a fairseq checkpoint.
        data: the data-bin.
        task_options: task options that replace those of the training, such as ``mask_prob``.
    """
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data), **task_options}
    )
    task.load_dataset("valid")
    return models[0].eval(), task


def _batches(task, size: int = BATCH) -> Iterator[dict]:
    """Yield batches of the validation split, in its order."""
    dataset = task.dataset("valid")
    for start in range(0, len(dataset), size):
        yield dataset.collater([dataset[index] for index in range(start, min(start + size, len(dataset)))])


@torch.no_grad()
def masked_loss(model: torch.nn.Module, task) -> float:
    """Return the cross-entropy in nats per masked token of the validation split, computed on a GPU if available.

    Which tokens are masked depends on the task's options and seed, not on the model. For a model that expands
    ``<mask>`` tokens, whose training loss is that of all targets together, each target is predicted on its own.
    """
    states = model.autoencoder.config.mask_states
    criterion, batches = MaskedAutoencoderLMCriterion(task), _batches(task, max(1, BATCH // states**2))
    if torch.cuda.is_available():
        model, batches = model.cuda(), map(utils.move_to_cuda, batches)
    loss_of = criterion if states == 1 else _marginal_loss  # which holds the logits of all states
    losses, predicted, *_ = zip(*(loss_of(model, batch) for batch in batches), strict=True)
    return float(sum(losses)) / sum(predicted)


def _marginal_loss(model: torch.nn.Module, batch: dict) -> tuple[Tensor, int]:
    """Return the summed cross-entropy at the predicted positions, and their number."""
    layout = restore(batch["layout"])
    targets = batch["target"].flatten().index_select(0, layout.predicted.index)
    logits, _ = model(**batch["net_input"], layout=layout)
    return F.cross_entropy(logits.float(), targets, reduction="sum"), len(targets)
