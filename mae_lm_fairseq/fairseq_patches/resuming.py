"""Which checkpoint a killed run goes on from, the newest that is whole, and from which batch.

fairseq writes a checkpoint under its own name (``checkpoint_1_500.pt``, ``checkpoint2.pt``, ``checkpoint_best.pt``) and
copies it to ``checkpoint_last.pt``, from which the next start goes on. A kill between the two leaves an older
``checkpoint_last.pt``, or none; a failing disk leaves a damaged one. Then the checkpoint of the most updates that is
whole takes its place. A ``--restore-file`` that the user names is never exchanged for another.

fairseq counts the batches of an epoch that each process has had. With another number of processes the count stands for
another place in the epoch, so it is converted.
"""

import logging
import math
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager

from mae_lm_fairseq.fairseq_patches.option_checks import DEFAULT_RESTORE_FILE
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.pretrained.checkpoint_file import read_whole
from mae_lm_fairseq.utils.errors import RefusedFile, UserError

logger = logging.getLogger(__name__)


def resume_from_newest_checkpoint() -> None:
    """fairseq resumes from ``checkpoint_last.pt`` alone, which a kill can leave damaged, older than others, or missing.

    It also takes one more update where none is left to do, and explains a checkpoint of more data with a traceback.
    """
    wrap(checkpoint_utils, "load_checkpoint", _load_newest_checkpoint)


def _load_newest_checkpoint(load: Callable, cfg: Any, trainer: Any, **kwargs) -> Any:
    if _is_ours_to_choose(cfg, trainer):
        if trainer.data_parallel_rank == 0:
            restore_last(Path(cfg.save_dir), trainer.checkpoint_suffix)
        if trainer.data_parallel_world_size > 1:  # the others wait
            group = trainer.data_parallel_process_group
            distributed_utils.broadcast_object("restored", src_rank=0, group=group, dist_device=trainer.device)
    try:
        loaded = load(cfg, trainer, **kwargs)
    except RuntimeError as error:
        if "dataloader mismatch" not in str(error):
            raise
        raise UserError(
            "the epoch of the checkpoint has more batches than that of these data and options; go on with the ones "
            "that it was trained with, or add --reset-dataloader to begin with the first epoch again"
        ) from error
    _stop_if_done(trainer)
    return loaded


def _stop_if_done(trainer: Any) -> None:
    """fairseq takes an update before it looks at their number: a run that is started after its end would go on."""
    most = trainer.cfg.optimization.max_update
    if most and trainer.get_num_updates() >= most:
        logger.info("nothing is left to do: the checkpoint has %d updates of %d", trainer.get_num_updates(), most)
        trainer.cfg.optimization.stop_min_lr = math.inf  # at which fairseq stops before it begins


def convert_position(state: dict[str, Any], processes: int) -> None:
    """Makes the position in the epoch one for ``processes`` processes, which batches are dealt out to in turn.

    Where the batches that were had cannot be divided by the processes, some of the last ones come again.
    """
    position = state.get("extra_state", {}).get("train_iterator", {})
    if not position.get("iterations_in_epoch") or state.get("cfg") is None:
        return
    before = state["cfg"]["distributed_training"]["distributed_world_size"]
    if before != processes:
        had = position["iterations_in_epoch"] * before
        position["iterations_in_epoch"] = had // processes
        logger.info("%d processes go on where %d were; %d batches come again", processes, before, had % processes)


def _is_ours_to_choose(cfg: Any, trainer: Any) -> bool:
    in_parts = trainer.is_fsdp or trainer.cfg.common.model_parallel_size > 1
    return (
        cfg.restore_file == DEFAULT_RESTORE_FILE
        and not (cfg.no_save or cfg.no_last_checkpoints or in_parts)
        and not PathManager.path_requires_pathmanager(cfg.save_dir)
    )


def restore_last(save_dir: Path, suffix: str = "") -> None:
    """Makes sure that ``checkpoint_last.pt`` is whole and the newest, where there is any checkpoint.

    Older checkpoints of more updates stay aside: who puts one of his choice in the place of ``checkpoint_last.pt``
    wants to go on from there.

    Raises:
        UserError: there are checkpoints, but none is whole; or loading the last one could run code.
    """
    last = save_dir / f"checkpoint_last{suffix}.pt"
    others = [path for path in _checkpoints(save_dir, suffix) if path != last]
    fault, least = None, -1
    if last.exists():
        fault = _fault(last)
        if fault is None:
            others = [path for path in others if path.stat().st_mtime_ns > last.stat().st_mtime_ns]
            least = saved_updates(last) if others else 0
    elif not others:
        return
    for updates, path in sorted(((saved_updates(path), path) for path in others), reverse=True):
        if updates > least and _fault(path) is None:
            why = f"is damaged ({fault})" if fault else "is not the newest: the run ended before it was written"
            logger.warning("%s %s; going on from %s, update %d", last, why, path.name, updates)
            PathManager.copy(str(path), str(last), overwrite=True)
            return
    if fault or not last.exists():
        raise UserError(
            f"{last}: {fault or 'no such file'}, and no other checkpoint there is whole; name one with --restore-file, "
            f"or start anew in another --save-dir"
        )


def _checkpoints(save_dir: Path, suffix: str) -> list[Path]:
    """What fairseq saves while it trains; not what it leaves of a crash, nor what users make of checkpoints."""
    name = re.compile(rf"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.+){re.escape(suffix)}\.pt")
    return [path for path in save_dir.glob("checkpoint*.pt") if name.fullmatch(path.name)]


def _load(path: Path) -> dict[str, Any]:
    """The checkpoint, its weights left on the disk where the file's format allows it."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def _fault(path: Path) -> str | None:
    """What is wrong with a file, or None where it is a whole checkpoint."""
    try:
        read_whole(_load, os.fspath(path), path)
    except RefusedFile:
        raise
    except UserError as error:
        return str(error).partition(": ")[2] or str(error)
    return None


def saved_updates(path: Path) -> int:
    """After how many updates a checkpoint was saved; -1 where it cannot be read."""
    try:
        return _load(path)["optimizer_history"][-1]["num_updates"]
    except Exception:  # damage can bring about any of them
        return -1
