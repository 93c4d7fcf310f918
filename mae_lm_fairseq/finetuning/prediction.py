"""Fine-tuned models, and their predictions of the sets of a data-bin."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, utils

from mae_lm_fairseq import register
from mae_lm_fairseq.text.tokenizer_files import NAMES
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.progress import progress_bar

BATCH = 64


def open_finetuned(path: Path, data_bin: Path | None = None) -> torch.nn.Module:
    """Return the hub interface of a fine-tuned model, on the GPU if there is one.

    Args:
        path: a bundle, such as ``model/`` in the directory of a fine-tuning; or a checkpoint.
        data_bin: for a checkpoint, the data-bin of its fine-tuning.

    Raises:
        UserError: if the files are not valid, as for ``from_pretrained``, or the model was not fine-tuned.
    """
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file or directory")
    if (path / "results.json").exists() and (path / "model").is_dir():
        raise UserError(f"{path} is the --out of a fine-tuning; name its best model, {path / 'model'}")
    register()
    from mae_lm_fairseq.models.mae_lm import MAELMModel

    model = MAELMModel.from_pretrained(path, data_bin)
    if not model.model.classification_heads:
        raise UserError(
            f"{path} is a pretrained model, which has no task yet; fine-tune it with mae-lm finetune, and name the "
            "model/ in its --out"
        )
    if model.tokenizer is None:
        raise UserError(f"{data_bin or path}: has no {NAMES}; put that of the pretraining run there")
    # The precision of evaluation, also for weights that were trained in half precision.
    return model.float().to("cuda" if torch.cuda.is_available() else "cpu")


def with_progress(batches: Iterable, total: int) -> Iterator:
    """Iterate over ``total`` batches; progress and the estimated time left go to standard error."""
    form = "{percentage:3.0f}%|{bar:25}| {elapsed}, {remaining} left"
    return iter(progress_bar(batches, stream=sys.stderr, total=total, bar_format=form))


def load(checkpoint: Path, data: Path) -> tuple[torch.nn.Module, object]:
    """Load a fine-tuned model in evaluation mode, and its task."""
    register()
    overrides = {"data": str(data), "autocast": "none"}  # evaluation is in float32, as by open_finetuned
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


@torch.no_grad()
def logits(model: torch.nn.Module, task, split: str) -> np.ndarray:
    """Return the logits of a set, [rows, classes] float32, in data-bin order.

    Batches group sequences of similar length.
    """
    head = task.cfg.classification_head_name
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
    """Return the true classes or values of a set that is loaded, [rows], in data-bin order."""
    dataset = task.dataset(split)
    return np.array([np.asarray(dataset[row]["target"]).item() for row in range(len(dataset))])
