"""Loss of a trained model on the validation split of a data-bin, masked as in training."""

from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion

BATCH_SIZE = 32
"""Sequences of the validation split that are computed at a time."""


def load_with_validation_split(checkpoint: Path, data: Path, **task_options) -> tuple[torch.nn.Module, object]:
    """Load a trained model in evaluation mode, and its task with the validation split of a data-bin.

    ``task_options`` replace those of the training, such as ``mask_prob``.
    """
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data), **task_options}
    )
    task.load_dataset("valid")
    return models[0].eval(), task


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
    logits, _ = model(**batch["net_input"], layout=layout)
    return F.cross_entropy(logits.float(), targets, reduction="sum"), len(targets)
