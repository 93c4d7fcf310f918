"""Losses of masked language models: of a text, and of the validation split of a data-bin."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.measures.kind import MaskedText, Trained
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
from mae_lm_fairseq.measures.readers import Reader
from mae_lm_fairseq.statistics.token_states import mask_texts
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bar

BATCH_SIZE = 32
"""Sequences of the validation split that are computed at a time."""


def text_loss(reader: Reader, model: Trained, sample: MaskedText) -> dict[str, float]:
    """Return loss and accuracy at the masked positions of a text, its unigram entropy, and how many are predicted.

    Args:
        reader: the model, opened with its head.
        model: names the text, and the model in the progress display.
        sample: amount of text, and what is masked.

    Raises:
        UserError: if the text cannot be read, or nothing of it is masked.
    """
    path = model.data.text
    texts = reader.texts_with_words(path, sample.tokens_per_sample, sample.tokens)
    fixed = [_fixed_positions(text, number, reader, sample) for number, text in enumerate(texts)]
    masked = _outcome(reader, texts, fixed, f"{model.label}, masked positions")
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


def pseudo_log_likelihoods(
    reader: Reader, model: Trained, sample: MaskedText, tokens: int
) -> dict[str, tuple[float, int]]:
    """Return the sum of log-likelihoods in nats, and of how many, if each token or each word is masked on its own.

    Args:
        reader, model, sample: as for :func:`text_loss`.
        tokens: number of tokens to read.
    """
    texts, found = reader.texts_with_words(model.data.text, sample.tokens_per_sample, tokens), {}
    for name, masking in {"token": each_token, "word": each_word}.items():
        rows = [masking(text.words) for text in texts]
        outcome = _outcome(reader, texts, rows, f"{model.label}, {name}s")
        found[name] = float(outcome.log_likelihoods.sum()), sum(len(of_text.predicted) for of_text in rows)
    return found


def _outcome(reader: Reader, texts: Sequence[Words], maskings: Sequence[Masking], name: str) -> Outcome:
    return predict(reader.predictor, [text.ids for text in texts], maskings, partial(progress_bar, desc=name))


def _fixed_positions(text: Words, number: int, reader: Reader, sample: MaskedText) -> Masking:
    """Mask a fraction of a text's tokens in one row; in none if the fraction is less than one token."""
    seed, fraction = sample.seed, sample.mask_prob
    masked = mask_texts([text.ids.tolist()], reader.predictor.pad, reader.special, fraction, seed, first=number)
    row = masked.is_masked.numpy()
    rows = row[row.any(1)]
    return Masking(rows, rows)


def load_with_validation_split(checkpoint: Path, data: Path, **task_options) -> tuple[torch.nn.Module, object]:
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


def _batches(task, size: int) -> Iterator[dict]:
    dataset = task.dataset("valid")
    for start in range(0, len(dataset), size):
        yield dataset.collater([dataset[index] for index in range(start, min(start + size, len(dataset)))])


@torch.no_grad()
def validation_loss(model: torch.nn.Module, task) -> float:
    """Return the cross-entropy in nats per masked token of the validation split, computed on a GPU if available.

    Which tokens are masked depends on the task's options and seed, not on the model. For a model that expands
    ``<mask>`` tokens, whose training loss is that of all targets together, each target is predicted on its own.
    """
    states = model.autoencoder.config.mask_states
    criterion, batches = MaskedAutoencoderLMCriterion(task), _batches(task, max(1, BATCH_SIZE // states**2))
    if torch.cuda.is_available():
        model, batches = model.cuda(), map(utils.move_to_cuda, batches)
    loss_of = criterion if states == 1 else marginal_loss  # which holds the logits of all states
    losses, predicted, *_ = zip(*(loss_of(model, batch) for batch in batches), strict=True)
    return float(sum(losses)) / sum(predicted)


def marginal_loss(model: torch.nn.Module, batch: dict) -> tuple[Tensor, int]:
    """Return the summed cross-entropy at the predicted positions, and their number."""
    layout = restore(batch["layout"])
    targets = batch["target"].flatten().index_select(0, layout.predicted.index)
    logits, _ = model(**batch["net_input"], layout=layout)
    return F.cross_entropy(logits.float(), targets, reduction="sum"), len(targets)
