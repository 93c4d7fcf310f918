"""Patches of how fairseq loads checkpoints."""

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from mae_lm_fairseq.fairseq_patches.hooks import ModelHooks
from mae_lm_fairseq.fairseq_patches.patching import patch, replaced, wrap
from mae_lm_fairseq.fairseq_patches.preemption import UNVALIDATED
from mae_lm_fairseq.fairseq_patches.resuming import PATIENCE, batch_limits, convert_position
from mae_lm_fairseq.fairseq_patches.saved_configurations import check_saved_configuration, forget_what_acts
from mae_lm_fairseq.trained.averaging import EMA, EXACT_EMA
from mae_lm_fairseq.trained.checkpoint_file import allow_plain_values, read_checked
from mae_lm_fairseq.trained.conversion import read_training_state
from mae_lm_fairseq.trained.reading import WEIGHTS
from mae_lm_fairseq.utils.errors import UserError, first_line
from mae_lm_fairseq.utils.training_options import differences

logger = logging.getLogger(__name__)


def read_checkpoints_as_data() -> None:
    """Load checkpoints without running code, in pickles or configurations, and report files that cannot be read.

    Whether fairseq lets a checkpoint run code depends on torch's default, the environment and the build: fairseq-fixed
    calls ``torch.load`` without ``weights_only``, other builds with ``weights_only=False``. A damaged file ends in one
    of several tracebacks. With this patch, no code in a checkpoint runs, and an error message names the file.

    fairseq builds tasks, models and criterions from the configuration in the file, and evaluates some of its strings.
    :func:`~mae_lm_fairseq.fairseq_patches.saved_configurations.check_saved_configuration` therefore checks it as soon
    as it has been read, and again as fairseq has converted that of an older checkpoint.
    """
    allow_plain_values()
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_checkpoint_as_data)


def _load_checkpoint_as_data(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    if os.path.isdir(path):
        state = read_training_state(path)
        check_saved_configuration(state, path)
        return state | {"cfg": OmegaConf.create(state["cfg"])}
    with replaced(torch, "load", functools.partial(_load_weights_only, torch.load, path)):
        try:
            state = load(path, *args, **kwargs)
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
        except Exception as error:  # fairseq's upgrade of old checkpoints, and Hydra's composition, can raise anything
            problem = f"it has no {error}" if isinstance(error, KeyError) else "its content has another structure"
            raise UserError(f"{path} is not a checkpoint of fairseq: {problem}") from error
    check_saved_configuration(state, path)
    return state


def _load_weights_only(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    state = read_checked(load, path, *args, **{**kwargs, "weights_only": True})
    check_saved_configuration(state, path)
    forget_what_acts(state)
    return state


@patch(Trainer, "load_checkpoint")
def check_checkpoints_before_restoring(
    load: Callable, trainer: Trainer, filename: str, reset_optimizer: bool = False, *args, **kwargs
) -> Any:
    """Let the model check a checkpoint before anything is restored from it, and start from bundles.

    fairseq restores whatever fits and raises a bare ``Exception`` for the rest. It saves the task's state but never
    compares it, so a changed dictionary is not noticed. With this patch, the method ``check_checkpoint`` of a
    model with :class:`~mae_lm_fairseq.fairseq_patches.hooks.ModelHooks` is called once the file has been read. The
    position in the epoch is converted to the number of processes. A run does not resume
    from a checkpoint without optimizer state, with which fairseq repeats the whole training.
    ``--finetune-from-model`` also takes a bundle, which is a directory. ``--store-ema`` can start from a checkpoint
    without EMA weights, which ended in a traceback. A run that resumes names the options that are not the checkpoint's.

    In a job of several processes, only the first one reads the file. If its check fails, it exits with code 1 while the
    others wait for the checkpoint. fairseq's launcher and torchrun then stop the others. Processes started by hand end
    when the connection breaks (gloo) or times out (NCCL).
    """
    load_to_cpu = checkpoint_utils.load_checkpoint_to_cpu
    read = functools.partial(_read_and_check, load_to_cpu, trainer, filename, not reset_optimizer)
    # fairseq starts from random weights, without a word, if the name is not that of a file.
    file = str(Path(filename, WEIGHTS)) if os.path.isdir(filename) else filename
    try:
        with replaced(checkpoint_utils, "load_checkpoint_to_cpu", read):
            return load(trainer, file, reset_optimizer, *args, **kwargs)
    except Exception as error:
        cause = error.__context__  # the trainer replaces any error of loading the weights
        if isinstance(cause, UserError):
            raise cause from None
        if "architectures match" in str(error):
            remedy = "give the options of its network, or choose another --save-dir"
            raise UserError(f"{file} does not fit this model: {_difference(cause)}; {remedy}") from error
        raise


def _difference(error: BaseException) -> str:
    """Return the first difference that torch names when it cannot load weights: below a heading, if there is one."""
    _, *differences = str(error).splitlines() or [""]
    return differences[0].strip() if differences else first_line(error)


def _read_and_check(
    read: Callable, trainer: Trainer, filename: str, resumes: bool, path: str, *args, **kwargs
) -> dict[str, Any]:
    state = read(filename if os.path.isdir(filename) else path, *args, **kwargs)
    cfg = trainer.cfg.checkpoint
    if resumes:
        _check_optimizer(trainer.cfg, path, state)
    starts_at_first_epoch = cfg.reset_dataloader or filename == cfg.finetune_from_model
    if not starts_at_first_epoch:
        processes = trainer.cfg.distributed_training.distributed_world_size
        convert_position(state, processes, batch_limits(trainer.cfg.dataset))

    model = trainer.get_model()
    if isinstance(model, ModelHooks):
        model.check_checkpoint(path, state, resumes)
    if trainer.cfg.ema.store_ema:  # the trainer deletes the model's weights before it would start from them
        state["extra_state"].setdefault(EMA, state["model"])
    if resumes:
        _name_other_options(state.get("cfg"), trainer.cfg)
    else:
        _forget_the_other_run(state["extra_state"])
    return state


def _check_optimizer(cfg: Any, path: str, state: dict[str, Any]) -> None:
    """Check that a run can resume with the state of the optimizer, and let ``fused_adamw`` have that of ``adam``."""
    has_state = state.get("last_optimizer_state") is not None
    # fairseq would repeat the training from the run's own weights.
    if not has_state and Path(path).parent == Path(cfg.checkpoint.save_dir):
        remedy = f"remove the checkpoints in {cfg.checkpoint.save_dir} to train again"
        if not cfg.checkpoint.finetune_from_model:
            remedy += ", or start once with --reset-optimizer, a new run from its weights"
        raise UserError(f"{path} has no optimizer state, so the run cannot resume; {remedy}")

    history = state.get("optimizer_history") or [{}]
    theirs = history[-1].get("optimizer_name")
    ours = getattr(cfg.optimizer, "_name", None)
    if theirs == "FairseqAdam" and ours == "fused_adamw":  # its updates and its state are the same
        history[-1]["optimizer_name"] = "FusedAdamW"
    if theirs == "FusedAdamW" and ours == "adam" and has_state:
        raise UserError(f"{path} was trained with --optimizer fused_adamw; add this option")


def _forget_the_other_run(extra_state: dict[str, Any]) -> None:
    extra_state.pop(EXACT_EMA, None)
    extra_state.pop(PATIENCE, None)
    extra_state.get("train_iterator", {}).pop(UNVALIDATED, None)


def _name_other_options(saved: Any, cfg: Any) -> None:
    if not (OmegaConf.is_config(saved) and OmegaConf.is_config(cfg)):  # of an old checkpoint, or a program of the user
        return
    theirs = OmegaConf.to_container(saved, resolve=True, enum_to_str=True)
    ours = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    changed = differences(theirs, ours)
    if changed:
        logger.info("other options than the checkpoint's: %s", ", ".join(changed))
