"""GPUs of this machine that CUDA cannot use.

torch is imported where it is used, so that a program's help, which needs none of this, appears at once.
"""

import os
import subprocess
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError, first_line

DEVICES = Path("/dev")


def check_gpu() -> None:
    """Raise a UserError if CUDA cannot use the GPUs of this machine: training would fall back to the CPU."""
    if problem := unusable_gpu():
        raise UserError(f'{problem}, or train on the CPU, with --cpu or CUDA_VISIBLE_DEVICES=""')


def unusable_gpu() -> str | None:
    """Return why CUDA cannot use the GPU of this machine, and what to do; None if it can, or there is none to use."""
    import torch

    first_visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    is_hidden = first_visible.strip() in ("", "-1", "NoDevFiles")
    if is_hidden or torch.cuda.is_available():
        return None
    gpu = gpu_and_driver()
    if gpu is None:
        return None
    try:
        torch.cuda.init()
        reason = "no device"
    except (RuntimeError, AssertionError) as error:  # AssertionError if torch was built without CUDA
        reason = first_line(error)
    name, driver = gpu
    return (
        f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use {name} with driver {driver}: {reason}; "
        "update the driver, install a torch that was built for it, or check CUDA_VISIBLE_DEVICES"
    )


def gpu_and_driver() -> tuple[str, str] | None:
    """Return name and driver version of the first NVIDIA GPU, without CUDA; None if there is none.

    Where nvidia-smi is not installed or fails, as in containers, the name is that of the device file.
    """
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
        name, driver = done.stdout.splitlines()[0].split(",")
        return name.strip(), driver.strip()
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):  # a broken GPU may time out
        files = sorted(DEVICES.glob("nvidia[0-9]*"))
        return (str(files[0]), "unknown") if files else None
