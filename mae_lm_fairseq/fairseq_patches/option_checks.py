"""Validation of fairseq's options before anything starts.

fairseq would ignore these options or fail on them much later. :mod:`processes` runs the checks in fairseq's commands,
:mod:`options` in its trainer.
"""

import ast
import logging
import math
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from mae_lm_fairseq.checkpoints.reading import WEIGHTS
from mae_lm_fairseq.fairseq_patches.copies import check_one_copy
from mae_lm_fairseq.fairseq_patches.unsupported import check_supported, is_our_model
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.versions import SLOW, bfloat16_speed

logger = logging.getLogger(__name__)

DEFAULT_RESTORE_FILE = "checkpoint_last.pt"
BOTH_PRECISIONS = "--fp16 and --bf16 have the same purpose; choose one"


def read_list(evaluate: Callable, text: Any, kind: type = float) -> list:
    """Parse the numbers of an option such as ``--lr 1e-3,nan``, with ``evaluate`` or, if that fails, one by one.

    Raises:
        ArgumentTypeError: if a part is not a number.
    """
    try:
        return evaluate(text, kind)
    except (ValueError, TypeError, SyntaxError):
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is neither a number nor a list of numbers such as 1,2") from None


# fairseq keeps these as text and evaluates them later, because their defaults refer to other options.
_LATE_NUMBERS = ("total_num_update", "batch_size_valid", "max_tokens_valid")


def check_command_line(arguments: Namespace) -> None:
    """Check command-line options that fairseq cannot convert to a configuration.

    Raises:
        UserError: if an option is invalid; the message names it.
    """
    if getattr(arguments, "lr_scheduler", None) == "polynomial_decay" and arguments.total_num_update is None:
        raise UserError("--lr-scheduler polynomial_decay needs --total-num-update, usually the value of --max-update")
    for name in _LATE_NUMBERS:
        value = getattr(arguments, name, None)
        if isinstance(value, str) and not value.startswith("${"):
            try:
                is_number = math.isfinite(float(value))
            except ValueError:
                is_number = False
            if not is_number:
                raise UserError(f"--{name.replace('_', '-')} {value} must be a number")


def check_settings(cfg: Any) -> None:
    """Check that the settings can work together and on this machine.

    Raises:
        UserError: if they cannot; the message names the option and what to do.
    """
    if isinstance(cfg, Namespace):
        cfg = convert_namespace_to_omegaconf(cfg)
    check_one_copy(cfg.common.user_dir)
    check_supported(cfg)
    _check_numbers(cfg)
    _check_decay(cfg)
    _check_betas(cfg.optimizer)
    _check_processes(cfg)
    _check_precision(cfg)
    _check_frozen_encoder(cfg)
    _check_batches(cfg)
    _check_criterion(cfg)
    _check_compile(cfg)
    _check_checkpoints_exist(cfg)


_MINIMA = {
    "common": {"seed": 0, "log_interval": 1},
    "dataset": {
        "batch_size": 1,
        "max_tokens": 1,
        "batch_size_valid": 1,
        "max_tokens_valid": 1,
        "required_batch_size_multiple": 1,
        "validate_interval": 1,
        "num_workers": 0,
    },
    "checkpoint": {"save_interval": 1},
    "ema": {"ema_decay": 0, "ema_start_update": 0, "ema_update_freq": 1},
    "optimization": {"lr": 0, "clip_norm": 0, "update_freq": 1, "max_update": 0, "max_epoch": 0},
    "optimizer": {"adam_eps": 0, "weight_decay": 0},
    "lr_scheduler": {"warmup_updates": 0, "end_learning_rate": 0, "power": 0},
}
_MAXIMA = {"seed": 2**32 - 1, "ema_decay": 1}  # the former is the limit of NumPy's generators


def _check_numbers(cfg: Any) -> None:
    """Check the range of numbers, which would cause tracebacks in NumPy, torch and fairseq or have no effect."""
    for section, minima in _MINIMA.items():
        for name, minimum in minima.items():
            value = getattr(cfg[section], name, None)
            numbers = value if OmegaConf.is_list(value) else [value]
            if not numbers:
                raise UserError(f"--{name.replace('_', '-')} is empty; give at least one number")
            for number in numbers:
                maximum = _MAXIMA.get(name, sys.float_info.max)
                if number is not None and not minimum <= number <= maximum:
                    limits = f"from {minimum} to {maximum}" if name in _MAXIMA else f"of at least {minimum}"
                    raise UserError(f"--{name.replace('_', '-')} {number} must be a number {limits}")


def _check_decay(cfg: Any) -> None:
    """Check that the decay ends after the warm-up; otherwise the learning rate stays near 0, then drops to its end."""
    schedule = cfg.lr_scheduler
    if getattr(schedule, "_name", None) != "polynomial_decay":
        return
    warmup, end, last = schedule.warmup_updates, schedule.total_num_update, cfg.optimization.max_update
    if not max(warmup, 0) < end < math.inf:
        raise UserError(
            f"--total-num-update {end:g} must be more than --warmup-updates {warmup}: the learning rate rises until "
            "the latter and then decays until the former"
        )
    if end < last and schedule.end_learning_rate == 0:
        _warn_once(f"--max-update {last} is more than --total-num-update {end:g}: the learning rate is 0 after it")


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def _check_betas(optimizer: Any) -> None:
    """Check Adam's betas. fairseq's ``adam`` does not, and fails in the first update."""
    if getattr(optimizer, "adam_betas", None) is not None:
        pair_of_betas(optimizer.adam_betas)


def pair_of_betas(given: Any) -> tuple[float, float]:
    """Parse Adam's betas from a string, as on the command line, or from a list, as in YAML.

    Raises:
        UserError: if they are not two numbers in [0, 1).
    """
    try:
        first, second = map(float, ast.literal_eval(given) if isinstance(given, str) else given)
    except (ValueError, TypeError, SyntaxError):
        first = second = math.nan
    if not (0 <= first < 1 and 0 <= second < 1):
        raise UserError(f"--adam-betas {given}: give two numbers in [0, 1), such as '(0.9, 0.98)'")
    return first, second


def _check_processes(cfg: Any) -> None:
    """Check that there is a GPU for each process that fairseq starts; it would fail with an assertion."""
    distributed = cfg.distributed_training
    number = distributed.distributed_world_size
    if number > 1 and distributed.distributed_init_method is None and not torch.cuda.is_available():
        raise UserError(
            f"--distributed-world-size {number} needs a GPU for each process: on a CPU start the processes with "
            f"torchrun --nproc-per-node {number}, without this option"
        )


def _check_precision(cfg: Any) -> None:
    """Check that a GPU is available for fairseq's half precisions, which fail, are slow or have no effect on a CPU.

    bfloat16 in autocast works on every CPU, but is slow on many.
    """
    common = cfg.common
    has_gpu = torch.cuda.is_available() and not common.cpu
    autocast = getattr(cfg.model, "autocast", None) == "bf16"
    if common.fp16 and common.bf16:
        raise UserError(BOTH_PRECISIONS)
    for name in ("fp16", "bf16"):
        if common[f"memory_efficient_{name}"] and not common[name]:  # the command line adds it
            raise UserError(f"common.memory_efficient_{name} has no effect without common.{name}; add it")
    for name in ("memory_efficient_fp16", "memory_efficient_bf16", "fp16", "bf16"):
        option = f"--{name.replace('_', '-')}"
        if common[name] and not has_gpu:
            raise UserError(f"{option} needs a GPU: leave it out, or on a CPU with fast bfloat16 use --autocast bf16")
        if common[name] and autocast:
            raise UserError(f"{option} and --autocast bf16 have the same purpose; choose one")
    if autocast and not has_gpu and (speed := bfloat16_speed()) < SLOW:
        _warn_once(
            f"--autocast bf16: this CPU multiplies matrices {1 / speed:.0f} times slower in bfloat16 than in float32; "
            "leave the option out"
        )


def _check_frozen_encoder(cfg: Any) -> None:
    """Check that ``--freeze-encoder-updates`` works: the optimizer must leave weights without a gradient alone.

    fairseq's optimizers for half precision give them a gradient of zero, and weight decay would still change them.
    """
    frozen = getattr(cfg.task, "freeze_encoder_updates", 0)
    if not frozen:
        return
    for name in ("fp16", "bf16"):
        if cfg.common[name]:
            raise UserError(
                f"--freeze-encoder-updates {frozen} does not work with --{name}; use --autocast bf16 instead"
            )


def _check_batches(cfg: Any) -> None:
    """Check that a batch can hold a sequence of pretraining. fairseq would drop longer ones, or fail.

    In other tasks, ``--tokens-per-sample`` may not be the length of a sequence.
    """
    if not is_our_model(cfg):
        return
    tokens = getattr(cfg.task, "tokens_per_sample", None)
    for name in ("max_tokens", "max_tokens_valid"):
        most = getattr(cfg.dataset, name)
        if tokens is not None and most is not None and most < tokens:
            raise UserError(
                f"--{name.replace('_', '-')} {most} must be at least --tokens-per-sample {tokens}: a batch has whole "
                "sequences"
            )


def _check_criterion(cfg: Any) -> None:
    """Check that the model computes what the criterion reads. The first batch would fail."""
    name = getattr(cfg.model, "_name", None)
    is_other = name in ARCH_MODEL_REGISTRY and not is_our_model(cfg)
    if getattr(cfg.criterion, "_name", None) == "masked_autoencoder_lm" and is_other:
        raise UserError(
            f"--criterion masked_autoencoder_lm is for models of mae_lm_fairseq, not --arch {name}; choose --criterion "
            "masked_lm"
        )


def _check_compile(cfg: Any) -> None:
    """Check that ``--compile`` has an effect: fairseq's criterion asks for all logits, which are not compiled."""
    if getattr(cfg.model, "compile", False) and getattr(cfg.criterion, "_name", None) == "masked_lm":
        raise UserError("--compile has no effect with --criterion masked_lm; choose --criterion masked_autoencoder_lm")


def _check_checkpoints_exist(cfg: Any) -> None:
    """Check that a requested checkpoint exists. fairseq would silently train from random weights."""
    if cfg.distributed_training.ddp_backend == "fully_sharded":
        return  # file names differ between processes
    checkpoint, suffix = cfg.checkpoint, cfg.checkpoint.checkpoint_suffix or ""
    if checkpoint.restore_file != DEFAULT_RESTORE_FILE:
        wanted = {"--restore-file": checkpoint.restore_file.replace(".pt", f"{suffix}.pt")}
    elif PathManager.isfile(os.path.join(checkpoint.save_dir, f"checkpoint_last{suffix}.pt")):
        wanted = {}  # a resumed run does not need the files that it started from
    else:
        wanted = {
            "--finetune-from-model": checkpoint.finetune_from_model,
            "--continue-once": checkpoint.get("continue_once"),
        }
    for option, path in wanted.items():
        if option == "--finetune-from-model" and path is not None and os.path.isdir(path):
            path = os.path.join(path, WEIGHTS)  # of a bundle
        if path is not None and not PathManager.isfile(path):
            raise UserError(f"{option} {path}: no such file ({os.path.abspath(path)}); check the path")
