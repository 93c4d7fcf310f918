"""The builder of all ``fairseq-train`` commands of this package: options by group, common values, words."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.training.published import ADAM
from mae_lm_fairseq.training.user_directory import user_directory
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.gpus import check_gpu
from mae_lm_fairseq.utils.training_options import option_of

Settings = dict[str, dict[str, Any]]
"""fairseq's options by the group of its configuration; a group's ``_name`` is a choice, such as the architecture."""

_WARMUP_FRACTION = 0.06


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """Adam whose learning rate rises in a warm-up, and then falls linearly to 0.

    Attributes:
        warmup: number of updates of the warm-up (default: 6 % of all).
        clip_norm: maximum norm of the gradient; 0 for no maximum.
    """

    updates: int
    warmup: int | None = None
    weight_decay: float
    clip_norm: float
    optimizer: str = "fused_adamw"
    betas: tuple[float, float] = ADAM["betas"]
    eps: float = ADAM["eps"]

    def settings(self) -> Settings:
        """Return fairseq's options, without the learning rate."""
        warmup = warmup_updates(self.updates) if self.warmup is None else self.warmup
        return {
            "optimizer": {
                "_name": self.optimizer,
                "adam_betas": str(self.betas),
                "adam_eps": self.eps,
                "weight_decay": self.weight_decay,
            },
            "lr_scheduler": {
                "_name": "polynomial_decay",
                "warmup_updates": warmup,
                "total_num_update": self.updates,
            },
            "optimization": {"clip_norm": self.clip_norm, "max_update": self.updates},
        }


def warmup_updates(updates: int) -> int:
    """Return the usual number of updates of the warm-up."""
    return round(_WARMUP_FRACTION * updates)


def common_settings() -> Settings:
    """Return the options of every training: code is the user's directory, or this package."""
    directory = user_directory()
    return {
        "common": {"user_dir": directory.path if directory else PACKAGE},
        # By default, 8: fairseq drops an epoch's last sequences and whole small splits.
        "dataset": {"required_batch_size_multiple": 1},
        "checkpoint": {"no_epoch_checkpoints": True},
    }


def unattended_settings() -> Settings:
    """Return the options of a training whose log this package reads: JSON, and one device, as fairseq uses all GPUs.

    Raises:
        UserError: if CUDA cannot use a GPU of this machine.
    """
    import torch

    check_gpu()
    settings: Settings = {"common": {"log_format": "json"}}
    if torch.cuda.is_available():
        return settings | {"distributed_training": {"distributed_world_size": 1}}
    settings["common"]["cpu"] = True
    return settings


def merge(*parts: Settings) -> Settings:
    """Return the options of all parts, of which the later ones take precedence."""
    merged: Settings = {}
    for part in parts:
        for group, values in part.items():
            merged.setdefault(group, {}).update(values)
    return merged


def as_options(settings: Settings) -> dict[str, Any]:
    """Convert options by group to options of fairseq-train, without dashes in front."""
    options = {}
    for group, values in settings.items():
        for name, value in values.items():
            option = option_of(group, name).replace("_", "-")
            options[option] = value[0] if isinstance(value, list) else value
    return options


_OPTION = re.compile(r"[A-Za-z0-9][\w-]*")
_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word)


def arguments(data: str | Path, options: dict[str, Any], extra: Sequence[str] = ()) -> list[str]:
    """Return the arguments of fairseq-train.

    Args:
        options: values by option; ``True`` is a flag, and ``False`` its absence.
        extra: further words, which take precedence.

    Raises:
        UserError: if a name or a value would be read as another option. fairseq imports ``--user-dir=PATH`` wherever
            it stands, so that a plan could name code.
    """
    if _is_option(str(data)):
        raise UserError(f"the data-bin {data} would be read as an option; write ./{data}")
    words = [str(data)]
    for name, value in options.items():
        if not _OPTION.fullmatch(name):
            raise UserError(f"--{name} is not the name of an option; write a name and its value apart")
        if _is_option(str(value)):
            raise UserError(f"--{name} has the value {value!r}, which would be read as an option; choose another one")
        if value is not False:
            words.append(f"--{name}")
        if not isinstance(value, bool):
            words.append(str(value))
    return [*words, *extra]


def check_further_options(task: str, extra: Sequence[str]) -> None:
    """Check options of fairseq-train for a task and a criterion of this name, before data are prepared.

    Raises:
        UserError: if its parser refuses one.
    """
    if not extra:
        return
    from mae_lm_fairseq.training.pretrain import checked_configuration  # imports fairseq, which takes seconds

    # Its parser knows the options of the chosen optimizer and schedule alone.
    optimisation = Optimisation(updates=1, weight_decay=0.0, clip_norm=0.0).settings()
    choices = {"task": {"_name": task}, "criterion": {"_name": task}, "model": {"_name": "mae_lm_base"}}
    settings = merge(common_settings(), optimisation, choices)
    checked_configuration(arguments("data", as_options(settings), extra))


def train_command(data: str | Path, options: dict[str, Any], extra: Sequence[str] = ()) -> list[str]:
    """Return the command that trains with the :func:`arguments`."""
    return [sys.executable, "-m", training_module(), *arguments(data, options, extra)]


def training_module() -> str:
    """Return the module of fairseq-train; with the user's directory, one that also registers this package."""
    return "mae_lm_fairseq.training.fairseq_train" if user_directory() else "fairseq_cli.train"


def split_global_batch(sequences: int, number_of_processes: int, batch_size: int, smaller: bool) -> tuple[int, int]:
    """Return batch size per process and number of accumulated batches for a global batch of ``sequences``.

    Args:
        sequences: sequences per update, over all processes.
        batch_size: sequences per batch of one process.
        smaller: whether the batch may be made smaller if there are many processes.

    Raises:
        UserError: if the sequences cannot be divided equally.
    """
    if smaller:
        per_process = sequences // number_of_processes
        batch_size = max(1, min(batch_size, per_process))
    accumulated, rest = divmod(sequences, batch_size * number_of_processes)
    if rest or not accumulated:
        raise UserError(
            f"{sequences:,} sequences per update cannot be divided into batches of {batch_size} in "
            f"{number_of_processes} processes; set --update-freq, or choose another --batch-size or number of processes"
        )
    return batch_size, accumulated
