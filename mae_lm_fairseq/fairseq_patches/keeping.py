"""``--keep-at``: the weights after some updates get files of their own, while training continues.

The patched fairseq calls :func:`keep_weights` after each update, before it saves a checkpoint. So the weights are kept
before any checkpoint has the update, and a training that is killed in between makes the update again.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.patching import replaced
from mae_lm_fairseq.utils.errors import UserError


def updates_to_keep(keep_at: str, max_update: int) -> list[int]:
    """Return the numbers of updates after which ``--keep-at`` keeps the weights.

    Args:
        max_update: the last update; 0 if it is not limited.

    Raises:
        UserError: if one of them is not a number, or training does not reach it.
    """
    try:
        numbers = [int(number) for number in keep_at.split(",")]
    except ValueError:
        numbers = [0]
    most = max_update or math.inf
    if not all(1 <= number <= most for number in numbers):
        limit = f", none above --max-update {max_update}" if max_update else ""
        raise UserError(f"--keep-at {keep_at}: give numbers of updates from 1, such as 500,1000{limit}")
    return numbers


def keep_weights(trainer: Trainer, position: Callable[[], Mapping[str, Any]]) -> None:
    """Keep the weights if ``--keep-at`` names the number of updates. What is kept already is not replaced.

    Args:
        position: returns the position in the data, as checkpoints have it.
    """
    updates = trainer.get_num_updates()
    if updates not in _updates_to_keep(trainer):
        return
    path = _path(trainer, updates)
    if not path.exists():
        save_weights(trainer, path, {"train_iterator": position(), "val_loss": None})


def check_kept(trainer: Trainer) -> None:
    """Check that a training that resumes has no update of ``--keep-at`` behind it whose weights are not kept.

    Raises:
        UserError: if it has.
    """
    reached = trainer.get_num_updates()
    for updates in _updates_to_keep(trainer):
        path = _path(trainer, updates)
        if updates < reached and not path.exists():
            raise UserError(
                f"--keep-at {updates}: the training has reached update {reached} and {path} does not exist; leave out "
                f"{updates}, or train in another --save-dir"
            )


def _updates_to_keep(trainer: Trainer) -> list[int]:
    task = trainer.cfg.task
    keep_at = getattr(task, "keep_at", None)
    if keep_at is None:
        return []
    return updates_to_keep(keep_at, task.max_update)


def _path(trainer: Trainer, updates: int) -> Path:
    directory = getattr(trainer.cfg.task, "keep_dir", None) or trainer.cfg.checkpoint.save_dir
    return Path(directory, f"{updates}.pt")


def save_weights(trainer: Trainer, path: Path, extra_state: dict[str, Any]) -> None:
    """Save a checkpoint without what only resuming needs. The file appears complete or not at all.

    Args:
        extra_state: is added to the checkpoint's ``extra_state``.

    Raises:
        UserError: if it cannot be written, as on a full disk.
    """
    save = checkpoint_utils.torch_persistent_save

    def save_reduced(state: dict[str, Any], filename: str, async_write: bool = False) -> None:
        state.pop("last_optimizer_state", None)
        state["optimizer_history"] = state["optimizer_history"][-1:]
        for name in ("previous_training_time", "metrics"):  # on a CPU, the file is the same if it is trained again
            state["extra_state"].pop(name, None)
        save(state, filename, async_write=async_write)

    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.consolidate_optimizer()
    with replaced(checkpoint_utils, "torch_persistent_save", save_reduced):
        trainer.save_checkpoint(str(path), extra_state)
