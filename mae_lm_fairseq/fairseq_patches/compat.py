"""Cures for the quirks of fairseq and torch, each in a function of its own.

Besides them only ``checkpoints.py`` (which checkpoint a run goes on from) and ``divergence.py`` (losses that are not
finite) change fairseq from outside. ``Trainer.load_checkpoint`` is wrapped here twice, to let task and model check a
checkpoint and to explain one that does not fit, and in ``checkpoints.py``, around both.

Seen with fairseq-fixed 0.12.3.1 and torch 2.13. Every cure replaces a function that fairseq reaches through a module
or a class at call time, so that it does not matter who imported what first. fairseq must be installed.
"""

import atexit
import contextlib
import functools
import os
import queue
import shutil
import textwrap
import threading
import time
import types
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import iterators
from fairseq.dataclass import utils as dataclass_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.copies import check_one_copy
from mae_lm_fairseq.fairseq_patches.option_checks import check_command_line, check_settings, read_list
from mae_lm_fairseq.fairseq_patches.patching import replaced, wrap
from mae_lm_fairseq.pretrained.checkpoint_file import allow_plain_values, read_whole
from mae_lm_fairseq.utils.errors import UserError, first_line


def apply() -> None:
    """Applies every cure. A second call changes nothing."""
    restore_numpy_compat()
    allow_plain_values()
    read_checkpoints_as_data()
    send_checkpoints_to_all_processes()
    let_checkpoints_be_checked()
    explain_checkpoints_that_do_not_fit()
    save_atomically()
    take_bf16_at_its_word()
    check_settings_before_training()
    explain_unwritable_directories()
    stop_loading_batches_at_exit()
    leave_the_last_word_to_the_failed_process()
    refuse_second_copy()


# ------------------------------------------------------------------------------------------------------------ numpy


def restore_numpy_compat() -> None:
    """``--sample-break-mode eos`` asks for ``np.compat.long``, which NumPy 2 no longer has (gone in 2.4)."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)


# -------------------------------------------------------------------------------------------------------- reading


def read_checkpoints_as_data() -> None:
    """fairseq leaves it to torch, or to the environment, whether loading a checkpoint may run code in it.

    fairseq-fixed calls ``torch.load`` without ``weights_only``, other builds of fairseq with ``weights_only=False``;
    and each sort of damage ends in another traceback. Here nothing in a checkpoint runs, and a file that cannot be
    read is named in one line.
    """
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_checkpoint_as_data)


def _load_checkpoint_as_data(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    with replaced(torch, "load", functools.partial(_load_weights_only, torch.load, path)):
        try:
            return load(path, *args, **kwargs)
        except OSError as error:
            raise UserError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
        except (KeyError, IndexError, TypeError, AttributeError) as error:  # what fairseq expects of older ones
            lack = f"it has no {error}" if isinstance(error, KeyError) else "its parts are not what they should be"
            raise UserError(f"{path} is not a checkpoint of fairseq: {lack}") from error


def _load_weights_only(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    return read_whole(load, path, *args, **{**kwargs, "weights_only": True})


def send_checkpoints_to_all_processes() -> None:
    """A job of several processes could not resume: the first one reads the checkpoint and sends it to the others.

    They unpack it with torch.load, which since torch 2.6 refuses two things that fairseq puts into it: the
    configuration as an OmegaConf object, and a small class that stands for a tensor.
    """
    torch.serialization.add_safe_globals([distributed_utils._TensorPlaceholder])
    wrap(distributed_utils, "broadcast_object", _broadcast_plain_object)


def _broadcast_plain_object(broadcast: Callable, obj: Any, *args, **kwargs) -> Any:
    if isinstance(obj, dict) and OmegaConf.is_config(obj.get("cfg")):
        obj = {**obj, "cfg": OmegaConf.to_container(obj["cfg"], enum_to_str=True)}
    return broadcast(obj, *args, **kwargs)


def let_checkpoints_be_checked() -> None:
    """The trainer saves the task's state and never looks at it again, so nobody notices a changed dictionary.

    A task or model with a method ``check_checkpoint(filename, state)`` is asked after the file was read and before
    anything is restored from it. Of several processes only the first reads the file. When one refuses, that process
    ends with exit code 1 while the others wait for it to send the checkpoint: fairseq's own launcher and torchrun then
    stop them; processes that were started by hand end when the connection breaks (gloo) or times out (NCCL).
    """
    wrap(Trainer, "load_checkpoint", _load_checkpoint_checked)


def _load_checkpoint_checked(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    read = checkpoint_utils.load_checkpoint_to_cpu

    def read_and_check(path: str, *args, **kwargs) -> dict[str, Any]:
        state = read(path, *args, **kwargs)
        for checker in (trainer.task, trainer.get_model()):
            if hasattr(checker, "check_checkpoint"):
                checker.check_checkpoint(path, state)
        return state

    with replaced(checkpoint_utils, "load_checkpoint_to_cpu", read_and_check):
        return load(trainer, filename, *args, **kwargs)


def explain_checkpoints_that_do_not_fit() -> None:
    """The trainer reports weights that do not fit as a bare ``Exception`` that hides what the difference is.

    Another optimizer or criterion than the checkpoint's ends in an ``AssertionError`` that says what to do.
    """
    wrap(Trainer, "load_checkpoint", _load_checkpoint_that_fits)


def _load_checkpoint_that_fits(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    try:
        return load(trainer, filename, *args, **kwargs)
    except AssertionError as error:
        if "does not match; please reset the optimizer" not in str(error):
            raise
        raise UserError(f"the checkpoint {filename} does not fit: {first_line(error)}") from error
    except Exception as error:
        cause = str(error.__context__)
        if not cause.startswith("Error(s) in loading state_dict"):
            raise
        saved = checkpoint_utils.load_checkpoint_to_cpu(filename).get("cfg")
        reason = "; ".join(_model_differences(saved, trainer.cfg)) or textwrap.shorten(cause.splitlines()[1], 300)
        raise UserError(f"the checkpoint {filename} does not fit this model: {reason}") from error


def _model_differences(saved: Any, current: Any) -> list[str]:
    """The model options that two configurations disagree on, with both values; old checkpoints have none."""
    if saved is None:
        return []
    ours, theirs = (_model_options(cfg) for cfg in (current, saved))
    return [
        f"{name} is {theirs[name]} there and {ours[name]} here"
        for name in sorted(ours.keys() & theirs.keys())
        if ours[name] != theirs[name]
    ]


def _model_options(cfg: Any) -> dict[str, Any]:
    """The options of a model; those of an older one come mixed with the whole command line."""
    if not isinstance(cfg.model, Namespace):
        return OmegaConf.to_container(cfg.model, resolve=True, enum_to_str=True)
    elsewhere = {name for section in cfg.values() if OmegaConf.is_dict(section) for name in section}
    return {name: value for name, value in vars(cfg.model).items() if name not in elsewhere}


# ---------------------------------------------------------------------------------------------------------- saving


def save_atomically() -> None:
    """A kill while fairseq saves could leave a torn checkpoint under a name that the next start reads.

    ``checkpoint_last.pt`` and ``checkpoint_best.pt`` are plain copies of the first file, written in place; nothing is
    flushed to the disk before the rename; the three attempts to save append to one file. Here each name appears
    complete or not at all. They stay copies: hard links would be cheaper, but whoever later writes into one of the
    files would change them all.
    """
    wrap(checkpoint_utils, "torch_persistent_save", _save_atomically)
    wrap(PathManager, "copy", _copy_atomically)


def _save_atomically(save: Callable, obj: Any, filename: str, async_write: bool = False) -> None:
    if async_write or PathManager.path_requires_pathmanager(filename):
        save(obj, filename, async_write=async_write)
        return
    for seconds_to_next_attempt in (2.5, 2.5, None):
        try:
            with _appearing_complete(filename) as file:
                torch.save(obj, file)
            return
        except Exception as error:
            if seconds_to_next_attempt is None:
                raise _cannot_save(filename, error) from error
            time.sleep(seconds_to_next_attempt)


def _copy_atomically(copy: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    if not overwrite or any(map(PathManager.path_requires_pathmanager, (src_path, dst_path))):
        return copy(src_path, dst_path, overwrite=overwrite)
    try:
        with open(src_path, "rb") as source, _appearing_complete(dst_path) as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except OSError as error:
        raise _cannot_save(dst_path, error) from error
    return dst_path


def _cannot_save(filename: str, error: BaseException) -> BaseException:
    """What to tell of a full disk, or of a directory that may not be written to; other errors as they are."""
    cause = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__  # torch's own error comes on top
    if cause is None:
        return error
    return UserError(
        f"cannot save {filename}: {cause.strerror}; the checkpoints that were there are as they were: "
        "mend that, and the same command goes on from the last one"
    )


@contextlib.contextmanager
def _appearing_complete(filename: str) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``filename`` when the ``with`` block ends, and vanishes if it fails."""
    # One name for all attempts: what a kill leaves behind is overwritten by the next save.
    temporary = f"{filename}.tmp"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, filename)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise
    directory = os.open(os.path.dirname(filename) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# -------------------------------------------------------------------------------------------------------- settings


def take_bf16_at_its_word() -> None:
    """On the command line fairseq takes ``--bf16`` for ``--tpu`` and dies for want of torch_xla, on a GPU too.

    Under Hydra ``common.bf16=true`` means what it says.
    """
    wrap(options, "parse_args_and_arch", _parse_args_and_arch)


def _parse_args_and_arch(parse: Callable, parser: Any, input_args: Any = None, *args, **kwargs) -> Any:
    parsed = parse(parser, input_args, *args, **kwargs)
    arguments = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(arguments, "bf16", False):
        arguments.tpu = parser.parse_known_args(input_args)[0].tpu
    check_command_line(arguments)
    return parsed


def check_settings_before_training() -> None:
    """Settings that fairseq would ignore, or die of much later, end the command with one line.

    ``fairseq-train`` asks before it starts any process. ``fairseq-hydra-train`` loads this package later than that,
    so the trainer asks again.
    """
    wrap(dataclass_utils, "eval_str_list", read_list)
    wrap(distributed_utils, "call_main", _call_main)
    wrap(Trainer, "__init__", _init_trainer)


def _call_main(call: Callable, cfg: Any, *args, **kwargs) -> Any:
    check_settings(cfg)
    return call(cfg, *args, **kwargs)


def _init_trainer(init: Callable, trainer: Trainer, cfg: Any, *args, **kwargs) -> None:
    check_settings(cfg)
    init(trainer, cfg, *args, **kwargs)


def leave_the_last_word_to_the_failed_process() -> None:
    """A user's error in one of the processes that fairseq starts, one for each GPU, was followed by a traceback.

    torch's launcher stops the other processes then, and raises an exception of its own over the exit code.
    """
    wrap(distributed_utils, "call_main", _call_main_in_processes)


def _call_main_in_processes(call: Callable, *args, **kwargs) -> Any:
    try:
        return call(*args, **kwargs)
    except torch.multiprocessing.ProcessExitedException as error:
        # Exceptions arrive as another class, and signals as negative codes: this process has told its user why.
        if error.exit_code != 1:
            raise
        raise SystemExit(1) from error


def explain_unwritable_directories() -> None:
    """A ``--save-dir`` that may not be written to ended training with a traceback, after the data had been read."""
    wrap(checkpoint_utils, "verify_checkpoint_directory", _verify_checkpoint_directory)


def _verify_checkpoint_directory(verify: Callable, save_dir: str) -> None:
    try:
        verify(save_dir)
    except OSError as error:
        raise UserError(f"--save-dir {save_dir}: cannot be written to: {error.strerror}") from None


def stop_loading_batches_at_exit() -> None:
    """A run that ended in the middle of an epoch could abort at exit ("terminate called...", exit code 134).

    fairseq's thread that loads batches ahead is still at work then. Python stops such threads as soon as they want
    the interpreter, and inside one of torch's operations that unwinds C++ code which does not allow it.
    """
    atexit.unregister(stop_loading_threads)
    atexit.register(stop_loading_threads)


def stop_loading_threads() -> None:
    """What :func:`stop_loading_batches_at_exit` does then; for processes that leave without Python's exit functions."""
    deadline = time.monotonic() + 10
    for thread in threading.enumerate():
        if isinstance(thread, iterators.BackgroundConsumer):
            thread._max_len = 0
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get(timeout=0.05)  # it may be waiting for room


# --------------------------------------------------------------------------------------------------------- package


def refuse_second_copy() -> None:
    """With two copies of this package fairseq mixes them, or stops with "not globally unique" and a traceback.

    It also takes another spelling of a path, such as a symbolic link, for another copy.
    """
    wrap(utils, "import_user_module", _import_user_module)


def _import_user_module(import_: Callable, args: Any) -> None:
    user_dir = getattr(args, "user_dir", None)
    check_one_copy(user_dir)
    if user_dir is None or Path(user_dir).resolve() != PACKAGE.resolve():
        import_(args)
