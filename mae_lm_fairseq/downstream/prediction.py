"""Predictions of a fine-tuned model with a classification head."""

from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, utils

from mae_lm_fairseq import register
from mae_lm_fairseq.utils.errors import UserError

BATCH = 64


def load(checkpoint: Path, data: Path) -> tuple[torch.nn.Module, object]:
    """Load a fine-tuned model in evaluation mode, and its task."""
    register()
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


@torch.no_grad()
def logits(model: torch.nn.Module, task, split: str) -> np.ndarray:
    """Return the logits of a set, [rows, classes] float32, in data-bin order.

    Batches group sequences of similar length.

    Raises:
        UserError: if the model does not have the head that the task names.
    """
    head = task.cfg.classification_head_name
    if head not in model.classification_heads:
        raise UserError(f"the model has no head {head}")
    task.load_dataset(split)
    dataset = task.dataset(split)
    order = np.argsort([dataset.num_tokens(row) for row in range(len(dataset))], kind="stable")
    device = next(model.parameters()).device
    results = np.empty((len(dataset), task.cfg.num_classes), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = dataset.collater([dataset[int(row)] for row in rows])
        batch = utils.move_to_cuda(batch) if device.type == "cuda" else batch
        output, _ = model(**batch["net_input"], features_only=True, classification_head_name=head)
        results[rows] = output.float().cpu().numpy()
    return results


def targets(task, split: str) -> np.ndarray:
    """Return the true classes or values of a set, [rows], in data-bin order."""
    if split not in task.datasets:
        task.load_dataset(split)
    dataset = task.dataset(split)
    return np.array([np.asarray(dataset[row]["target"]).item() for row in range(len(dataset))])
