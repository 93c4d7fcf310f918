"""Versions and hardware that results depend on.

torch is imported where it is used, so that a program's help, which needs none of this, appears at once.
"""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("mae_lm_fairseq", "fairseq-fixed", "torch", "numpy", "sentencepiece")
"""Packages that train the models."""
OF_DATA = ("mae_lm_fairseq", "sentencepiece", "numpy")
"""Packages that prepare data."""


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages."""
    return {"python": platform.python_version()} | {name: package_version(name) for name in packages}


def package_version(package: str) -> str:
    """Return the version of an installed package; "not installed" for one that is only imported from a directory."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def provenance() -> dict[str, object]:
    """Return what every published measurement needs beside it: command, commit, hardware and versions."""
    program = os.path.relpath(sys.argv[0], Path(__file__).parents[2])
    command = shlex.join([program, *sys.argv[1:]])
    return {"command": command, "commit": commit(), "machine": machine(), "versions": versions()}


def machine() -> str:
    """Describe the training hardware: the GPU or, without one, the CPU's architecture, instruction set and cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def commit() -> str | None:
    """Return the commit of the package's git checkout, with "+" if files were changed; None outside of a checkout."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    head = _git("rev-parse", "HEAD")
    is_changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if head and is_changed else head


def _git(*words: str) -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
