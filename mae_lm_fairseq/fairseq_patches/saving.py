"""Patches of how fairseq saves checkpoints."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.fairseq_patches.preemption import from_first_process
from mae_lm_fairseq.trained.checkpoint_file import raise_cannot_save, write_checkpoint
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import lock_directory
from mae_lm_fairseq.utils.writing import replacing_file


def save_atomically() -> None:
    """Save checkpoints atomically: each file appears complete or not at all.

    A kill during saving could leave an incomplete checkpoint under a name that the next start reads. fairseq writes
    ``checkpoint_last.pt`` and ``checkpoint_best.pt`` as plain copies in place, does not flush to disk before it
    renames, and appends all of its three attempts to one file. Copies are not replaced by hard links, which would be
    cheaper, because writing to one of the files later would change them all.

    Before a training, fairseq writes a file ``dummy`` to the directory and removes it, which would overwrite what a
    link of this name points to. With this patch, the directory's permissions are asked for.
    """
    wrap(checkpoint_utils, "torch_persistent_save", _save_atomically)
    wrap(PathManager, "copy", _copy_atomically)
    wrap(checkpoint_utils, "verify_checkpoint_directory", _check_directory)


def _save_atomically(save: Callable, obj: Any, filename: str, async_write: bool = False) -> None:
    if PathManager.path_requires_pathmanager(filename):
        save(obj, filename, async_write=async_write)
        return
    for seconds_to_next_attempt in (2.5, 2.5, None):
        try:
            write_checkpoint(obj, Path(filename))
            return
        except Exception as error:
            if seconds_to_next_attempt is None:
                raise_cannot_save(filename, error)
            time.sleep(seconds_to_next_attempt)


def _copy_atomically(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    if not overwrite or any(map(PathManager.path_requires_pathmanager, (src_path, dst_path))):
        return copy(src_path, dst_path, overwrite=overwrite)
    try:
        with open(src_path, "rb") as source, replacing_file(Path(dst_path)) as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except OSError as error:
        raise_cannot_save(dst_path, error)
    return dst_path


def _check_directory(verify: Callable, save_dir: str) -> None:
    if PathManager.path_requires_pathmanager(save_dir):
        verify(save_dir)
        return
    os.makedirs(save_dir, exist_ok=True)
    if not os.access(save_dir, os.W_OK):
        raise UserError(f"--save-dir {save_dir} is not a writable directory; choose another one")


def lock_save_dir(cfg: Any, trainer: Any) -> None:
    """Lock ``--save-dir`` for the job of the trainer, until its first process ends.

    The first process takes the lock and sends the outcome to the others, so that all of them end if there is another
    job.

    Raises:
        UserError: in every process, if another job has the lock.
    """
    if cfg.no_save or PathManager.path_requires_pathmanager(cfg.save_dir):
        return
    refusal = ""
    if trainer.data_parallel_rank == 0:
        try:
            lock_directory(Path(cfg.save_dir))
        except UserError as error:
            refusal = str(error)
    refusal = from_first_process(trainer, refusal)
    if refusal:
        raise UserError(refusal)
