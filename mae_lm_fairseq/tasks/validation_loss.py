"""Loss of a trained model on the validation split of a data-bin, masked as in training."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.tasks import FairseqTask
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.loading import load_with_task

BATCH_SIZE = 32
"""Sequences of the validation split that are computed at a time."""


def load_with_validation_split(checkpoint: Path, data: Path, **options: Any) -> tuple[MAELMModel, FairseqTask]:
    """Load a trained model and its task, see :func:`load_with_task`, with the validation split of a data-bin."""
    model, task = load_with_task(checkpoint, data, **options)
    task.load_dataset("valid")
    return model, task


@torch.no_grad()
def validation_loss(model: torch.nn.Module, task) -> float:
    """Return the cross-entropy in nats per masked token of the validation split, computed on a GPU if available.

    Which tokens are masked depends on the task's options and seed, not on the model. For a model that expands
    ``<mask>`` tokens, whose training loss is that of all targets together, each target is predicted on its own.
    """
    states = model.autoencoder.config.mask_states
    criterion, dataset = MaskedAutoencoderLMCriterion(task), task.dataset("valid")
    rows, size = range(len(dataset)), max(1, BATCH_SIZE // states**2)
    batches = (dataset.collater([dataset[row] for row in rows[at : at + size]]) for at in rows[::size])
    if torch.cuda.is_available():
        model, batches = model.cuda(), map(utils.move_to_cuda, batches)
    loss_of = criterion if states == 1 else marginal_loss  # which holds the logits of all states
    losses, predicted, *_ = zip(*(loss_of(model, batch) for batch in batches), strict=True)
    return float(sum(losses)) / sum(predicted)


def marginal_loss(model: torch.nn.Module, batch: dict) -> tuple[Tensor, int]:
    """Return the summed cross-entropy at the predicted positions, and their number."""
    layout = restore(batch["layout"])
    targets = batch["target"].flatten().index_select(0, layout.predicted.index)
    logits, _ = model.predicted_logits(batch["net_input"]["src_tokens"], layout)
    return F.cross_entropy(logits.float(), targets, reduction="sum"), len(targets)
