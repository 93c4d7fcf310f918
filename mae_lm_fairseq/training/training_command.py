"""Device and data of a training that this package starts."""

from pathlib import Path

import torch

from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.training.settings import Settings
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
