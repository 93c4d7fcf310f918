"""GPUs of this machine that CUDA cannot use.

torch is imported where it is used, so that a program's help, which needs none of this, appears at once.
"""

import glob
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.utils.errors import UserError, first_line

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each major version of CUDA (release notes of the CUDA toolkit, "minor version compatibility")."""


class UnusableGPU(NamedTuple):
    """Why CUDA cannot use a GPU, and what to do."""

    problem: str
    remedy: str


def check_gpu() -> None:
    """Check that CUDA can use the GPUs of this machine, if there are any: training would fall back to the CPU.

    Raises:
        UserError: if it cannot.
    """
    if found := unusable_gpu():
        raise UserError(f'{found.problem}; {found.remedy}, or train on the CPU, with --cpu or CUDA_VISIBLE_DEVICES=""')


def unusable_gpu() -> UnusableGPU | None:
    """Return why CUDA cannot use a GPU of this machine; None if CUDA can use all GPUs, also if the machine has none.

    GPUs that ``CUDA_VISIBLE_DEVICES`` hides do not count, all of them included.
    """
    import torch

    if torch.cuda.is_available():
        return _gpu_without_kernels()
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in ("", "-1", "NoDevFiles")
    found = None if is_hidden else gpu_and_driver()
    if found is None:
        return None
    (name, driver), cuda = found, torch.version.cuda
    if cuda is None:
        remedy = "install a torch that was built for CUDA (https://pytorch.org/get-started/locally)"
        return UnusableGPU(f"torch {torch.__version__} was built without CUDA, and this machine has {name}", remedy)
    problem = f"CUDA {cuda} of torch {torch.__version__} cannot use {name} with driver {driver}"
    oldest = OLDEST_DRIVER.get(int(cuda.split(".")[0]), 0)
    if driver.split(".")[0].isdecimal() and int(driver.split(".")[0]) < oldest:
        remedy = f"update the driver to {oldest} or newer, or install a torch that was built for an older CUDA"
        return UnusableGPU(f"{problem}, which is too old", remedy)
    try:
        torch.cuda.init()
        reason = "no device"
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
    return UnusableGPU(f"{problem}: {reason}", "check CUDA_VISIBLE_DEVICES, and restart after an update of the driver")


def _gpu_without_kernels() -> UnusableGPU | None:
    """Return a GPU for which torch was not built, if there is one."""
    import torch

    built_for = torch.cuda.get_arch_list() if torch.version.cuda else []  # other names on AMD
    for number in range(torch.cuda.device_count() if built_for else 0):
        capability = torch.cuda.get_device_capability(number)
        if not any(_runs_on(target, capability) for target in built_for):
            major, minor = capability
            problem = f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(number)}, of compute"
            problem += f" capability {major}.{minor}, but for {' '.join(built_for)}"
            return UnusableGPU(problem, "install a torch that was built for this GPU, or set CUDA_VISIBLE_DEVICES")
    return None


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Return whether code for a target, such as sm_90a, runs on a GPU: within a major version, or compiled anew."""
    kind, major, minor = re.match(r"(sm|compute)_(\d+)(\d)", target).groups()
    return (int(major), int(minor)) <= capability and (kind == "compute" or int(major) == capability[0])


def gpu_and_driver() -> tuple[str, str] | None:
    """Return name and driver version of the first NVIDIA GPU, without CUDA; None if this machine has none.

    Containers without a GPU see the driver's version, but no device file. Jobs of a cluster can see device files of
    GPUs that are not theirs, which ``nvidia-smi`` does not list.
    """
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
        if done.returncode == 0 and "," in done.stdout:
            name, driver = done.stdout.splitlines()[0].rsplit(",", 1)
            return name.strip(), driver.strip()
        if "No devices" in done.stdout + done.stderr:
            return None
    except (OSError, subprocess.TimeoutExpired):
        pass  # not installed, or waiting for a GPU that is broken
    if not glob.glob("/dev/nvidia[0-9]*"):
        return None
    module = Path("/proc/driver/nvidia/version")
    number = re.search(r"\b\d{3}\.[\d.]+", module.read_text()) if module.exists() else None
    return "an NVIDIA GPU", number[0] if number else "of unknown version"
