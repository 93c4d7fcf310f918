"""Versions and hardware that results depend on."""

import os
import platform
from importlib.metadata import version

import torch

PACKAGES = ("mae_lm_fairseq", "fairseq-fixed", "torch", "numpy", "sentencepiece")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that train the models."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def machine() -> str:
    """Describe the training hardware: the GPU or, without one, the CPU's architecture, instruction set and cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
