"""Checks of fairseq's options before training starts: one table, which docs/reference/options.md shows.

fairseq would ignore these options or train wrongly. :mod:`processes` runs the checks in fairseq's commands,
:mod:`parsing` in its trainer.
"""

import math
import os
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from tempfile import gettempdir
from typing import Any, NamedTuple

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from mae_lm_fairseq.fairseq_patches.hooks import ModelHooks
from mae_lm_fairseq.trained.reading import WEIGHTS
from mae_lm_fairseq.utils.allocator import keep_few_primitives, keep_few_segments
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import is_utf8
from mae_lm_fairseq.utils.gpus import unusable_gpu

DEFAULT_RESTORE_FILE = "checkpoint_last.pt"
METRICS = ("loss", "ppl", "accuracy")
PRETRAINING_TASKS = ("masked_autoencoder_lm", "masked_lm")
CRITERIONS = ("masked_lm", "sentence_prediction", "sentence_ranking")
"""Criteria of fairseq that compute what they say with models of this package."""
LONGEST_TMPDIR = 107 - len("/pymp-XXXXXXXX/listener-XXXXXXXX")
"""Bytes that Linux takes for the path of a socket, less the names that multiprocessing gives those of data workers."""


class Check(NamedTuple):
    """An option that is refused.

    Attributes:
        find: returns what is wrong in a configuration; false if nothing is.
        reason: what is wrong, and what to do; may refer to ``{found}`` and to the configuration ``{cfg}``.
    """

    option: str
    find: Callable[[Any], Any]
    reason: str


def check_settings(cfg: Any) -> None:
    """Check that the settings can work together and on this machine; before, set what is read once in a process.

    Raises:
        UserError: if they cannot; the message names the option and what to do.
    """
    if isinstance(cfg, Namespace):
        cfg = convert_namespace_to_omegaconf(cfg)
    keep_few_primitives(64 if _autocast(cfg) else 16)  # the first primitive may be that of a check
    keep_few_segments()
    for check in CHECKS:
        problem = check.find(cfg)
        if problem:
            reason = check.reason.format(found=problem, cfg=cfg)
            raise UserError(f"{check.option} {reason}")


def option(name: str) -> str:
    """Return the command-line option of a name in the configuration."""
    return f"--{name.replace('_', '-')}"


def _out_of_range(section: str, name: str, least: float, most: float, cfg: Any) -> str | None:
    value = getattr(cfg[section], name, None)
    numbers = value if OmegaConf.is_list(value) else [value]
    for number in numbers:
        if number is not None and not least <= number <= most:  # NaN is in no range
            return str(number)
    return None


def is_our_model(cfg: Any) -> bool:
    """Return whether a configuration trains a model of this package. Others may have options that ours do not have."""
    model_type = ARCH_MODEL_REGISTRY.get(getattr(cfg.model, "_name", None))
    return model_type is not None and issubclass(model_type, ModelHooks)


def _other_criterion(cfg: Any) -> str | None:
    """Return the criterion of a pretraining if it is one of fairseq's that averages over other positions."""
    if getattr(cfg.task, "_name", None) not in PRETRAINING_TASKS or not _is_ours(cfg):
        return None
    if cfg.common_eval.path is not None:  # fairseq-validate takes the criterion of the checkpoint
        return None
    name = getattr(cfg.criterion, "_name", None)
    criterion = CRITERION_REGISTRY.get(name)
    is_of_fairseq = criterion is not None and criterion.__module__.startswith("fairseq.")
    return name if is_of_fairseq and name not in CRITERIONS else None


def _is_ours(cfg: Any) -> bool:
    return getattr(cfg.task, "_name", None) == "masked_autoencoder_lm" or is_our_model(cfg)


def _too_long(limit: str, cfg: Any) -> int | None:
    """Return the sequence length of a task, if a batch within a limit of tokens may not hold one sequence."""
    length = getattr(cfg.task, "tokens_per_sample", None)
    most = cfg.dataset[limit]
    return length if length and most and most < length and _is_ours(cfg) else None


def _autocast(cfg: Any) -> bool:
    return getattr(cfg.model, "autocast", None) == "bf16"


def _decays(cfg: Any) -> bool:
    return getattr(cfg.lr_scheduler, "_name", None) == "polynomial_decay"


def _missing_checkpoint(name: str, cfg: Any) -> str | None:
    path = cfg.checkpoint.get(name)
    suffix = cfg.checkpoint.checkpoint_suffix or ""
    is_chosen = cfg.checkpoint.restore_file != DEFAULT_RESTORE_FILE
    last = os.path.join(cfg.checkpoint.save_dir, f"checkpoint_last{suffix}.pt")
    if name == "restore_file":
        path = path.replace(".pt", f"{suffix}.pt") if is_chosen else None
    elif is_chosen or PathManager.isfile(last):
        return None  # a resumed run does not need the files that it started from
    elif name == "finetune_from_model" and path is not None and os.path.isdir(path):
        path = os.path.join(path, WEIGHTS)  # of a bundle
    return None if path is None or PathManager.isfile(path) else path


def _not_utf8(section: str, name: str, cfg: Any) -> str | None:
    """Return a path in ASCII if it is not UTF-8, in which fairseq could not save, or a checkpoint seem damaged."""
    path = getattr(cfg[section], name, None)
    return None if path is None or is_utf8(path) else ascii(path)


_PATHS = (
    *(("checkpoint", name) for name in ("save_dir", "restore_file", "finetune_from_model", "continue_once")),
    *(("common", name) for name in ("tensorboard_logdir", "log_file")),
    ("ema", "ema_seed_model"),
    ("task", "data"),
)
"""Section of the configuration, and option, of the paths that must be UTF-8."""
# Section of the configuration, minimum, maximum, options: fairseq takes other values for no limit, or trains with them.
_RANGES = (
    ("common", 1, math.inf, ("log_interval",)),
    ("common", 0, math.inf, ("seed",)),
    ("dataset", 0, math.inf, ("num_workers",)),
    ("dataset", 1, math.inf, ("batch_size", "batch_size_valid", "max_tokens", "required_batch_size_multiple")),
    ("optimization", 1, math.inf, ("update_freq",)),
    ("optimization", 0, math.inf, ("lr", "clip_norm", "max_update", "max_epoch")),
    ("optimizer", 0, math.inf, ("weight_decay",)),
    ("lr_scheduler", 0, math.inf, ("warmup_updates", "end_learning_rate", "power")),
    ("ema", 0, 1, ("ema_decay",)),
    ("task", 1, math.inf, ("mask_multiple_length",)),
    ("task", 0, math.inf, ("mask_stdev",)),
    ("task", 0, 1, ("leave_unmasked_prob", "random_token_prob")),
)
CHECKS = (
    Check(
        "--cpu",
        lambda cfg: not cfg.common.cpu and unusable_gpu(),
        "is needed to train on the CPU of this machine: {found}",
    ),
    *(
        Check(option(name), partial(_out_of_range, section, name, least, most), f"{{found}} must be a number {limits}")
        for section, least, most, names in _RANGES
        for name in names
        for limits in [f"from {least} to {most}" if most == 1 else f"of at least {least}"]
    ),
    Check(
        "--total-num-update",
        lambda cfg: (
            _decays(cfg) and not max(cfg.lr_scheduler.warmup_updates, 0) < cfg.lr_scheduler.total_num_update < math.inf
        ),
        "{cfg.lr_scheduler.total_num_update:g} must be more than --warmup-updates {cfg.lr_scheduler.warmup_updates}: "
        "the learning rate rises over the warm-up and then decays until --total-num-update",
    ),
    Check(
        "--stop-min-lr",
        lambda cfg: cfg.optimization.stop_min_lr >= 0 and _decays(cfg) and cfg.lr_scheduler.warmup_updates > 0,
        "with --warmup-updates would end training before the first update, whose learning rate is 0; remove one",
    ),
    Check("--fp16", lambda cfg: cfg.common.fp16 and cfg.common.bf16, "and --bf16 have the same purpose; choose one"),
    *(
        check
        for name in ("fp16", "bf16")
        for check in (
            Check(
                f"--{name}",
                lambda cfg, name=name: cfg.common[name] and (cfg.common.cpu or not torch.cuda.is_available()),
                "needs a GPU: leave it out, or on a CPU with fast bfloat16 use --autocast bf16; with "
                f"fairseq-hydra-train, set common.{name}=false common.cpu=true",
            ),
            Check(
                f"--{name}",
                lambda cfg, name=name: cfg.common[name] and _autocast(cfg),
                "and --autocast bf16 have the same purpose; choose one",
            ),
            # fairseq's optimizers for it give frozen weights a gradient of zero, and weight decay changes them.
            Check(
                f"--{name}",
                lambda cfg, name=name: cfg.common[name] and getattr(cfg.task, "freeze_encoder_updates", 0),
                "does not work with --freeze-encoder-updates {found}; use --autocast bf16 instead",
            ),
        )
    ),
    # fairseq unscales the gradients twice, once for torch's optimizer and once for its own wrapper of it.
    Check("--amp", lambda cfg: is_our_model(cfg) and cfg.common.amp, "is not supported; use --autocast bf16"),
    Check(
        "--mask-prob",
        lambda cfg: not 0 < (rate := getattr(cfg.task, "mask_prob", 0.5)) < 1 and str(rate),
        "{found} must be a number above 0 and below 1",
    ),
    # A forgotten --criterion is fairseq's cross_entropy, which divides by all tokens and reports a seventh of the loss.
    Check(
        "--criterion",
        _other_criterion,
        "{found} is not the loss of masked language models; choose --criterion masked_autoencoder_lm",
    ),
    # fairseq would end in an assertion where it makes the batches.
    *(
        Check(
            option(name),
            partial(_too_long, name),
            f"{{cfg.dataset.{name}}} is less than --tokens-per-sample {{found}}, so that a sequence may fit no batch; "
            f"raise {option(name)}, or lower --tokens-per-sample",
        )
        for name in ("max_tokens", "max_tokens_valid")
    ),
    # fairseq would log an error and end with exit code 0, without a training.
    Check(
        "--write-checkpoints-asynchronously",
        lambda cfg: cfg.checkpoint.write_checkpoints_asynchronously,
        "is not supported: a kill could leave an incomplete checkpoint; leave it out",
    ),
    Check("--tpu", lambda cfg: cfg.common.tpu, "is not supported; leave it out"),
    Check(
        "--ddp-backend",
        lambda cfg: is_our_model(cfg) and cfg.distributed_training.ddp_backend in ("fully_sharded", "slowmo"),
        "{cfg.distributed_training.ddp_backend} is not supported; choose legacy_ddp or pytorch_ddp",
    ),
    # fairseq would end at the first validation, with nothing saved.
    Check(
        "--best-checkpoint-metric",
        lambda cfg: (
            getattr(cfg.criterion, "_name", None) == "masked_autoencoder_lm"
            and cfg.checkpoint.best_checkpoint_metric not in METRICS
        ),
        f"{{cfg.checkpoint.best_checkpoint_metric}} is not logged; choose one of {', '.join(METRICS)}",
    ),
    # fairseq takes the batches of both from one iterator, so that a validation ends the epoch of training.
    Check(
        "--valid-subset",
        lambda cfg: "".join({cfg.dataset.train_subset} & {*cfg.dataset.valid_subset.split(",")}),
        "{cfg.dataset.valid_subset} has {found}, which is trained on; copy that split to another name",
    ),
    # The workers would fail, and training would wait for them forever.
    Check(
        "--num-workers",
        lambda cfg: cfg.dataset.num_workers and len(os.fsencode(path := gettempdir())) > LONGEST_TMPDIR and path,
        "{cfg.dataset.num_workers} needs sockets in the temporary directory, whose path {found} is too long: set "
        f"TMPDIR to one of at most {LONGEST_TMPDIR} bytes, or use --num-workers 0",
    ),
    # It would take the cross-entropy of the alignment head's logits.
    Check(
        "--criterion masked_lm",
        lambda cfg: getattr(cfg.criterion, "_name", None) == "masked_lm" and getattr(cfg.model, "mask_states", 1) > 1,
        "is not the loss of --mask-states {cfg.model.mask_states}; choose --criterion masked_autoencoder_lm",
    ),
    # It would weight all predicted tokens alike.
    Check(
        "--criterion masked_lm",
        lambda cfg: (
            getattr(cfg.criterion, "_name", None) == "masked_lm"
            and str(getattr(cfg.task, "loss_weight", "equal")) != "equal"
        ),
        "ignores --loss-weight {cfg.task.loss_weight}; choose --criterion masked_autoencoder_lm",
    ),
    Check(
        "--task masked_lm",
        lambda cfg: (
            cfg.task._name == "masked_lm"
            and (cfg.task.leave_unmasked_prob or cfg.task.random_token_prob)
            and getattr(cfg.model, "mask_states", 1) > 1
        ),
        "keeps some tokens, unlike --mask-states {cfg.model.mask_states}; choose --task masked_autoencoder_lm",
    ),
    *(
        Check(
            "DATA" if name == "data" else option(name),
            partial(_not_utf8, section, name),
            "{found} is not UTF-8; rename it",
        )
        for section, name in _PATHS
    ),
    # fairseq would silently train from random weights.
    *(
        Check(option(name), partial(_missing_checkpoint, name), "{found}: no such file; check the path")
        for name in ("restore_file", "finetune_from_model", "continue_once")
    ),
)
"""The checks, in the order in which they are made."""
