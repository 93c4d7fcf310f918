"""Masked loss of a trained model on the validation split of a data-bin."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor

from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion

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
