"""Command of a pretraining run with the recipe of its architecture."""

import sys
from pathlib import Path

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.recipes.machine import split_global_batch
from mae_lm_fairseq.recipes.settings import Settings, as_arguments, recipe, settings
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.utils.errors import UserError

CPU: Settings = {"common": {"cpu": True}}
GPU: Settings = {"distributed_training": {"distributed_world_size": 1}}
DEVICE = GPU if torch.cuda.is_available() else CPU
"""fairseq's options for this machine; by default it would use all GPUs."""


def with_device(chosen: Settings, device: Settings = DEVICE) -> Settings:
    """Add the settings of a device, ``GPU`` or ``CPU``, to other settings."""
    for group, values in device.items():
        chosen.setdefault(group, {}).update(values)
    return chosen


def check_data(data: Path):
    """Check that a data-bin has the files for pretraining and validation.

    Raises:
        UserError: if a file is missing or truncated.
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
    """Return a ``fairseq-train`` command. Runs with the same numbers have the same data, masks and order.

    Args:
        architecture: the architecture, which determines the recipe.
        data: the data-bin.
        save: directory for checkpoints.
        updates: number of updates, at which the learning rate reaches zero.
        warmup: warm-up updates.
        validate_every: number of updates between validations and checkpoints.
        options: options of ``fairseq-train``, which take precedence over the recipe's.
        device: ``GPU`` (one GPU) or ``CPU``; by default a GPU if available.
    """
    chosen = settings(architecture)
    chosen["lr_scheduler"] |= {"warmup_updates": warmup, "total_num_update": updates}
    sequences = recipe(architecture)["sequences"].value
    chosen["dataset"]["batch_size"], accumulated = split_global_batch(
        sequences, 1, chosen["dataset"]["batch_size"], smaller=True
    )
    chosen["dataset"]["validate_interval_updates"] = validate_every
    chosen["optimization"] |= {"max_update": updates, "update_freq": [accumulated]}
    chosen["checkpoint"] |= {"save_dir": save, "save_interval_updates": validate_every}
    chosen["common"] |= {"user_dir": PACKAGE, "log_format": "json", "seed": 1}
    arguments = as_arguments(with_device(chosen, device))
    return [sys.executable, "-m", "fairseq_cli.train", str(data), *arguments, *options]
