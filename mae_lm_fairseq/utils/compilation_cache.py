"""Directory in which torch and Triton keep compiled code for the next start."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import torch

from mae_lm_fairseq.utils.files import file_sha256

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
VARIABLES = {INDUCTOR: "inductor", TRITON: "triton"}
"""Environment variables that name the directories, and the names of these."""
PRECOMPILED_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def keep_compiled_code(operator: Path) -> None:
    """Let torch and Triton keep compiled code in a directory that nobody else can write to, for the next start.

    Values in the environment take precedence. By default, torch uses a directory in /tmp, where a reboot removes it and
    another user of the machine may have created it, with other code. torch keeps precompiled headers of C++ there
    whatever the variables say, so it makes none.

    Args:
        operator: the file of the operator in the code. torch compares its name, and would use an earlier gradient.
    """
    unset = VARIABLES.keys() - os.environ.keys()
    if not unset:
        return
    directory = _private_directory(f"torch-{torch.__version__}-{file_sha256(operator)[:10]}")
    for name in unset:
        os.environ[name] = str(directory / VARIABLES[name])
    if INDUCTOR in unset:
        os.environ.setdefault(PRECOMPILED_HEADERS, "0")


def _private_directory(name: str) -> Path:
    """Return a directory of the user: in the Python environment, in the user's cache, or for this start alone."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for cache in (os.path.join(sys.prefix, "var", "cache"), user_cache):
        directory = Path(cache, "mae_lm_fairseq", name)
        if directory.is_absolute() and _is_private(directory.parent) and _is_private(directory):
            return directory
    return Path(tempfile.mkdtemp())


def _is_private(directory: Path) -> bool:
    """Return whether a directory, which is created if it does not exist, belongs to the user and to nobody else."""
    try:
        directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    is_closed = stat.S_IMODE(status.st_mode) == stat.S_IRWXU and status.st_uid == os.getuid()
    return stat.S_ISDIR(status.st_mode) and is_closed and os.access(directory, os.W_OK)
