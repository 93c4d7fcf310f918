"""Checkpoint recovery: resume from the newest valid checkpoint, at the right batch.

fairseq writes a checkpoint under its own name (``checkpoint_1_500.pt``, ``checkpoint2.pt``, ``checkpoint_best.pt``) and
copies it to ``checkpoint_last.pt``, which the next start resumes from. A kill between the two leaves an older
``checkpoint_last.pt`` or none, and a failing disk a damaged one. It is then replaced by the valid checkpoint with the
most updates, and so is ``checkpoint_best.pt`` if that is the best one. A ``--restore-file`` chosen by the user is never
replaced.

fairseq stores the number of batches of the epoch that each process has had. With another number of processes, this
number refers to another position in the epoch, so it is converted.
"""

import contextlib
import logging
import math
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.keeping import check_kept, keep_weights
from mae_lm_fairseq.fairseq_patches.option_checks import DEFAULT_RESTORE_FILE
from mae_lm_fairseq.fairseq_patches.patching import patch, wrap
from mae_lm_fairseq.fairseq_patches.preemption import from_first_process, make_up_for_validation
from mae_lm_fairseq.fairseq_patches.saving import lock_save_dir
from mae_lm_fairseq.trained.checkpoint_file import read_checked, value_at
from mae_lm_fairseq.utils.errors import RefusedFile, UserError

logger = logging.getLogger(__name__)

PATIENCE = "patience"
"""Name of the count of ``--patience`` in a checkpoint's ``extra_state``."""
_SEQUENCES = "sequences"
"""Name of the number of training sequences there."""
_OF_PATIENCE = ("best", "num_runs")
"""Attributes in which fairseq counts."""
_OF_PLATEAU = ("num_bad_epochs", "cooldown_counter")
"""Counts of torch's schedule."""


@patch(checkpoint_utils, "load_checkpoint")
def resume_from_newest_checkpoint(load: Callable, cfg: Any, trainer: Trainer, **kwargs) -> Any:
    """Resume from the newest valid checkpoint, in a directory that no other job uses.

    Two jobs in one ``--save-dir`` overwrote each other's checkpoints, and both reported success. With this patch, the
    second one ends before it restores a checkpoint or trains; with ``--no-save``, any number of jobs can run.

    fairseq resumes from ``checkpoint_last.pt`` only, which after a kill can be damaged, outdated or missing. It also
    runs one update too many when training is already finished, by ``--max-update`` or ``--stop-time-hours``. From the
    checkpoint of the end of an epoch, it resumes without the step that the learning rate takes then. It applies the
    position in an epoch to any data, whose beginning is skipped. It compares ``--stop-min-lr`` at the ends of epochs
    and at every start, so that a run which resumed in the middle of an epoch ended earlier than without interruption.
    """
    lock_save_dir(cfg, trainer)
    is_default = cfg.restore_file == DEFAULT_RESTORE_FILE and not PathManager.path_requires_pathmanager(cfg.save_dir)
    if is_default and not cfg.no_save:
        _restore_last_in_first_process(cfg, trainer)
    remedy = "add --reset-dataloader to start with the first epoch of this text"
    try:
        extra_state, iterator = load(cfg, trainer, **kwargs)
    except RuntimeError as error:
        if "dataloader mismatch" not in str(error):
            raise
        raise UserError(f"the data changed: the epoch of the checkpoint has fewer batches now; {remedy}") from error
    before = (extra_state or {}).get(_SEQUENCES)
    after = len(iterator.dataset)
    if iterator.iterations_in_epoch and before not in (None, after):
        raise UserError(f"the data changed: {before:,} sequences per epoch at the checkpoint, {after:,} now; {remedy}")
    check_kept(trainer)
    keep_weights(trainer, lambda: extra_state["train_iterator"])  # of a checkpoint that was saved without --keep-at

    _restore_patience(extra_state or {})
    resets = cfg.reset_lr_scheduler or cfg.reset_optimizer
    if extra_state and not (resets or cfg.reset_dataloader):
        program = next(_early_stopping()).__globals__
        make_up_for_validation(trainer, extra_state, program["validate_and_save"])
    if iterator.epoch > 1 and not (iterator.iterations_in_epoch or resets):
        trainer.lr_step(iterator.epoch - 1, extra_state.get("val_loss"))
    if iterator.iterations_in_epoch:
        _skip_next_comparison_of_rate(trainer)
    _stop_if_done(trainer)
    return extra_state, iterator


def _restore_last_in_first_process(cfg: Any, trainer: Trainer) -> None:
    """Call :func:`restore_last` in the first process of a job, for which the others wait."""
    if trainer.data_parallel_rank == 0:
        last = Path(cfg.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
        # Without last checkpoints, only a run that a signal has ended leaves one, which later ones outdate.
        if last.exists() or not cfg.no_last_checkpoints:
            restore_last(Path(cfg.save_dir), trainer.checkpoint_suffix)
    from_first_process(trainer, "restored")


def _skip_next_comparison_of_rate(trainer: Trainer) -> None:
    """Let the comparison of the learning rate with ``--stop-min-lr`` pass with which fairseq begins every start."""
    get_rate = trainer.get_lr

    def get_first_rate() -> float:
        trainer.get_lr = get_rate
        return math.inf

    trainer.get_lr = get_first_rate


def keep_counts() -> None:
    """Let ``--patience`` and ``--lr-scheduler reduce_lr_on_plateau`` go on counting when a run resumes.

    fairseq counts validations without progress in an attribute of a function, which every start begins again, and does
    not save for how many epochs there has been no progress.
    """
    wrap(Trainer, "save_checkpoint", _save_with_counts)
    wrap(ReduceLROnPlateauLRSchedule, "state_dict", _plateau)
    wrap(ReduceLROnPlateauLRSchedule, "load_state_dict", _load_plateau)


def _plateau(get: Callable, schedule: ReduceLROnPlateauLRSchedule) -> dict[str, Any]:
    counts = vars(schedule.lr_scheduler)
    return get(schedule) | {name: counts[name] for name in _OF_PLATEAU}


def _load_plateau(load: Callable, schedule: ReduceLROnPlateauLRSchedule, state: dict[str, Any]) -> None:
    load(schedule, state)
    counts = vars(schedule.lr_scheduler)
    for name in _OF_PLATEAU:
        if name in state:
            counts[name] = state[name]


def _early_stopping() -> Iterator[Callable]:
    """Yield the function that counts; as ``python -m fairseq_cli.train``, its module has another name."""
    for name in ("fairseq_cli.train", "__main__", "__mp_main__"):
        if hasattr(sys.modules.get(name), "should_stop_early"):
            yield sys.modules[name].should_stop_early


def _save_with_counts(save: Callable, trainer: Trainer, filename: str, extra_state: dict[str, Any]) -> None:
    train = trainer.cfg.dataset.train_subset
    if train in trainer.task.datasets:
        extra_state[_SEQUENCES] = len(trainer.task.dataset(train))
    for function in _early_stopping():
        counts = vars(function)
        if "num_runs" in counts:
            extra_state[PATIENCE] = {name: counts[name] for name in _OF_PATIENCE}
            break
    save(trainer, filename, extra_state)


def _restore_patience(extra_state: dict[str, Any]) -> None:
    saved = extra_state.get(PATIENCE, {})
    for function in _early_stopping():
        counts = vars(function)
        for name in _OF_PATIENCE:
            counts.pop(name, None)
        counts.update(saved)


def _stop_if_done(trainer: Trainer) -> None:
    """Stop if all updates are done, the time is over, or there is no progress; fairseq trains once more before."""
    cfg = trainer.cfg
    updates = trainer.get_num_updates()
    most = cfg.optimization.max_update
    hours = cfg.optimization.stop_time_hours
    counts = [vars(function).get("num_runs", 0) for function in _early_stopping()]
    without_progress = max(counts, default=0)
    if most and updates >= most:
        logger.info("training is complete: the checkpoint has %d of %d updates", updates, most)
    elif updates and 0 < hours < trainer.cumulative_training_time() / 3600:
        logger.info("training is complete: it has taken --stop-time-hours %s", hours)
    elif 0 < cfg.checkpoint.patience <= without_progress:
        logger.info("training has stopped early: no progress in %d validations (--patience)", without_progress)
    else:
        return
    cfg.optimization.max_epoch = -1  # no epoch is trained


def convert_position(state: dict[str, Any], processes: int, limits: dict[str, int]) -> None:
    """Convert the position in the epoch to another number of processes, which take batches in turn, or batch size.

    With the same batches, those that follow are the next ones of the epoch. If the number of batches done is not
    divisible by ``processes``, the last few are repeated. With another ``--batch-size`` or ``--max-tokens``, the rest
    of the epoch is about as long as before, but the batches are others. If both limit a batch, or
    others than before, the number of batches in an epoch is unknown.
    """
    position = state.get("extra_state", {}).get("train_iterator", {})
    done = position.get("iterations_in_epoch")
    if not done or state.get("cfg") is None:
        return
    before = state["cfg"]["distributed_training"]["distributed_world_size"]
    done_by_all = done * before
    batch_size = 1
    limits_before = batch_limits(value_at(state, "cfg", "dataset") or {})
    if len(limits) == 1 and limits.keys() == limits_before.keys():
        [batch_size] = limits.values()
        [batch_size_before] = limits_before.values()
        done_by_all *= batch_size_before
    done = done_by_all // (processes * batch_size)
    position["iterations_in_epoch"] = done
    if before != processes:
        logger.info("resuming with %d processes instead of %d, after %d batches of each", processes, before, done)


def batch_limits(dataset: Mapping[str, Any]) -> dict[str, int]:
    """Return the options that limit a batch of one process, by name."""
    limits = {"--batch-size": dataset.get("batch_size"), "--max-tokens": dataset.get("max_tokens")}
    return {name: value for name, value in limits.items() if value}


def restore_last(save_dir: Path, suffix: str = "") -> None:
    """Make sure that ``checkpoint_last.pt`` is valid and the newest checkpoint, if there are checkpoints.

    If it is valid, files with an older modification time are ignored even if they have more updates: a user who copies
    a checkpoint over ``checkpoint_last.pt`` wants to resume from it. A warning names each damaged one that is passed
    over.

    Raises:
        UserError: if no checkpoint is valid, or loading the last one could run code.
    """
    last = save_dir / f"checkpoint_last{suffix}.pt"
    fault = fault_of(last) if last.exists() else None
    others = [path for path in saved_checkpoints(save_dir, suffix) if path != last]
    least_updates = -1
    if last.exists() and not fault:
        saved_at = last.stat().st_mtime_ns
        others = [path for path in others if path.stat().st_mtime_ns > saved_at]
        least_updates = saved_updates(last) if others else -1
    if not (last.exists() or others):
        return

    updates = {path: saved_updates(path) for path in others}
    readable = sorted((path for path in others if updates[path] >= 0), key=updates.get, reverse=True)
    unreadable = [path for path in others if updates[path] < 0]  # with any number of updates
    for path in unreadable + readable:
        if -1 < updates[path] <= least_updates:
            break
        damage = fault_of(path)
        if damage:
            logger.warning("%s is passed over: %s", path, damage)
            continue
        why = f"is damaged ({fault})" if fault else "is not the newest: the run ended before it was written"
        logger.warning("%s %s; resuming from %s, update %d", last, why, path.name, updates[path])
        _restore_best(save_dir / f"checkpoint_best{suffix}.pt", path)
        PathManager.copy(str(path), str(last), overwrite=True)
        return
    if fault or not last.exists():
        raise UserError(
            f"{last}: {fault or 'no such file'}, and no other checkpoint in that directory is valid; choose one with "
            "--restore-file, or start again in another --save-dir"
        )


def _restore_best(best: Path, newest: Path) -> None:
    """Make the newest checkpoint also the best one, if it is and the run ended before that was written."""
    state = value_at(load_mapped(newest), "extra_state")
    loss = value_at(state, "val_loss")
    is_best = loss is not None and loss == value_at(state, "best")
    if is_best and saved_updates(newest) > saved_updates(best):
        PathManager.copy(str(newest), str(best), overwrite=True)


def saved_checkpoints(save_dir: Path, suffix: str = "") -> list[Path]:
    """Return the checkpoints that fairseq saves in training; not ``crash.pt`` or files named by users."""
    name = re.compile(rf"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+){re.escape(suffix)}\.pt")
    return [path for path in save_dir.glob("checkpoint*.pt") if name.fullmatch(path.name)]


def load_mapped(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, whose weights are read when they are used."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def fault_of(path: Path) -> str | None:
    """Return what is wrong with a file, or None if it is a valid checkpoint."""
    try:
        read_checked(load_mapped, os.fspath(path), path)
    except RefusedFile:
        raise
    except UserError as error:
        return str(error).partition(": ")[2] or str(error)
    return None


def saved_batch_size(checkpoint: Any) -> tuple[int, Path] | None:
    """Return the sequences per batch of the checkpoint that a run resumes from, and its path; None without one.

    Args:
        checkpoint: the group ``checkpoint`` of the configuration of fairseq-train.
    """
    suffix = checkpoint.checkpoint_suffix or ""
    paths = [Path(checkpoint.restore_file)]
    if checkpoint.restore_file == DEFAULT_RESTORE_FILE:
        directory = Path(checkpoint.save_dir)
        paths = [directory / f"checkpoint_last{suffix}.pt", *saved_checkpoints(directory, suffix)]
    for path in paths:
        with contextlib.suppress(Exception):  # a damaged file can raise anything; training passes it over or refuses it
            size = value_at(load_mapped(path), "cfg", "dataset", "batch_size")
            if isinstance(size, int) and size > 0:
                return size, path
    return None


def saved_updates(path: Path) -> int:
    """Return the number of updates of a checkpoint, or -1 if it cannot be read."""
    try:
        return load_mapped(path)["optimizer_history"][-1]["num_updates"]
    except Exception:  # a damaged file can raise anything
        return -1
