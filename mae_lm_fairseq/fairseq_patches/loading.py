"""Patches of how fairseq loads checkpoints."""

import functools
import textwrap
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from mae_lm_fairseq.fairseq_patches.patching import replaced, wrap
from mae_lm_fairseq.fairseq_patches.resuming import convert_position
from mae_lm_fairseq.pretrained.checkpoint_file import allow_plain_values, read_whole
from mae_lm_fairseq.utils.errors import UserError, first_line


def read_checkpoints_as_data() -> None:
    """fairseq leaves it to torch, or to the environment, whether loading a checkpoint may run code in it.

    fairseq-fixed calls ``torch.load`` without ``weights_only``, other builds of fairseq with ``weights_only=False``;
    and each sort of damage ends in another traceback. Here nothing in a checkpoint runs, and a file that cannot be
    read is named in an error message.
    """
    allow_plain_values()
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


def check_checkpoints_before_restoring() -> None:
    """The trainer restores from a checkpoint whatever fits, and reports what does not as a bare ``Exception``.

    It saves the task's state and never looks at it again, so nobody notices a changed dictionary. A task or model with
    a method ``check_checkpoint(filename, state)`` is asked after the file was read and before anything is restored
    from it. Of several processes only the first reads the file. When one refuses, that process ends with exit code 1
    while the others wait for it to send the checkpoint: fairseq's own launcher and torchrun then stop them; processes
    that were started by hand end when the connection breaks (gloo) or times out (NCCL).

    Weights that do not fit the model, and another optimizer or criterion than the checkpoint's, are explained. The
    position in the epoch is converted where the number of processes has changed.
    """
    wrap(Trainer, "load_checkpoint", _load_checkpoint)


def _load_checkpoint(load: Callable, trainer: Trainer, filename: str, *args, **kwargs) -> Any:
    read = functools.partial(_read_and_check, checkpoint_utils.load_checkpoint_to_cpu, trainer, filename)
    try:
        with replaced(checkpoint_utils, "load_checkpoint_to_cpu", read):
            return load(trainer, filename, *args, **kwargs)
    except UserError:
        raise
    except Exception as error:
        explained = _explained(error, trainer, filename)
        if explained is None:
            raise
        raise explained from error


def _read_and_check(read: Callable, trainer: Trainer, filename: str, path: str, *args, **kwargs) -> dict[str, Any]:
    state = read(path, *args, **kwargs)
    cfg = trainer.cfg.checkpoint
    if not (cfg.reset_dataloader or filename == cfg.finetune_from_model):  # with these the first epoch begins
        convert_position(state, trainer.cfg.distributed_training.distributed_world_size)
    for checker in (trainer.task, trainer.get_model()):
        if hasattr(checker, "check_checkpoint"):
            checker.check_checkpoint(path, state)
    return state


def _explained(error: Exception, trainer: Trainer, filename: str) -> UserError | None:
    """The error that says why a checkpoint does not fit, or None where that is not the reason."""
    if isinstance(error, AssertionError) and "does not match; please reset the optimizer" in str(error):
        return UserError(f"the checkpoint {filename} does not fit: {first_line(error)}")
    cause = error.__context__  # the trainer replaces whatever loading the weights raises
    if isinstance(cause, UserError):
        return cause
    if not str(cause).startswith("Error(s) in loading state_dict"):
        return None
    saved = checkpoint_utils.load_checkpoint_to_cpu(filename).get("cfg")
    reason = "; ".join(_model_differences(saved, trainer.cfg)) or textwrap.shorten(str(cause).splitlines()[1], 300)
    return UserError(f"the checkpoint {filename} does not fit this model: {reason}")


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
