"""The command of a pretraining run, with the recipe of its architecture."""

import sys
from pathlib import Path

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.recipes.machine import share
from mae_lm_fairseq.recipes.settings import Settings, as_arguments, recipe, settings
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.utils.errors import UserError

CPU: Settings = {"common": {"cpu": True}}
GPU: Settings = {"distributed_training": {"distributed_world_size": 1}}
DEVICE = GPU if torch.cuda.is_available() else CPU
"""fairseq's options for this machine: it takes all GPUs that there are unless told otherwise."""


def with_device(chosen: Settings, device: Settings = DEVICE) -> Settings:
    """Settings with those of a device, ``GPU`` or ``CPU``, put in."""
    for group, values in device.items():
        chosen.setdefault(group, {}).update(values)
    return chosen


def check_data(data: Path):
    """Make sure that a data-bin has what pretraining and validation read.

    Raises:
        UserError: something is missing, or is cut short.
    """
    if not (data / "dict.txt").is_file():
        raise UserError(f"{data} is no data-bin: it has no dict.txt; mae-lm prepare makes one")
    for split in ("train", "valid"):
        check_data_bin(data / split)


def training_command(
    architecture: str,
    data: Path,
    save: Path,
    updates: int,
    warmup: int,
    validate_every: int,
    *options: str,
    device: Settings = DEVICE,
) -> list[str]:
    """One ``fairseq-train``. Runs with the same numbers have the same data, masks and order.

    Args:
        architecture: with whose recipe to train.
        data: the data-bin.
        save: where checkpoints go.
        updates: how many, and the end of the learning rate's decay.
        warmup: updates until the learning rate is reached.
        validate_every: updates between two validations, and two checkpoints.
        options: of ``fairseq-train``, which win over the recipe's.
        device: one GPU where there are any, or ``CPU``.
    """
    chosen = settings(architecture)
    chosen["lr_scheduler"] |= {"warmup_updates": warmup, "total_num_update": updates}
    sequences = recipe(architecture)["sequences"].value
    chosen["dataset"]["batch_size"], accumulated = share(sequences, 1, chosen["dataset"]["batch_size"], smaller=True)
    chosen["dataset"]["validate_interval_updates"] = validate_every
    chosen["optimization"] |= {"max_update": updates, "update_freq": [accumulated]}
    chosen["checkpoint"] |= {"save_dir": save, "save_interval_updates": validate_every}
    chosen["common"] |= {"user_dir": PACKAGE, "log_format": "json", "seed": 1}
    arguments = as_arguments(with_device(chosen, device))
    return [sys.executable, "-m", "fairseq_cli.train", str(data), *arguments, *options]
