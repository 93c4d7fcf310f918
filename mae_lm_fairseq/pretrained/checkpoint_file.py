"""The content of a checkpoint's file, read as data: nothing in it runs, and damage is told in one line."""

import errno
import os
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mae_lm_fairseq.utils.errors import RefusedFile, UserError


def allow_plain_values() -> None:
    """Resuming failed: since torch 2.6 ``torch.load`` takes weights only, and fairseq saves some more.

    That is ``argparse.Namespace`` (the configuration of fairseq's older models) and NumPy scalars (what SciPy and
    scikit-learn compute stays in the meters and in the best score). All of them are plain values. NumPy 1 pickles its
    scalars as ``numpy.core...``, NumPy 2 as ``numpy._core...``; a checkpoint of either must load with both.
    """
    scalar = np.float64().__reduce__()[0]
    scalar_types = (np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64)
    torch.serialization.add_safe_globals(
        [
            Namespace,
            np.dtype,
            *(type(np.dtype(scalar_type)) for scalar_type in scalar_types),
            (scalar, "numpy.core.multiarray.scalar"),
            (scalar, "numpy._core.multiarray.scalar"),
        ]
    )


def read_whole(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    """What ``load(*args, **kwargs)`` reads from the checkpoint ``path``.

    Raises:
        RefusedFile: reading it could run code.
        UserError: it is damaged, or no checkpoint of fairseq.
    """
    try:
        _check_sums(path)
        state = load(*args, **kwargs)
    except UserError:
        raise
    except Exception as error:  # damage can bring about any of them
        refuse_code(path, error)
        raise UserError(f"cannot read the checkpoint {path}: {_reason(error)}") from error
    if not isinstance(state, dict) or "model" not in state or not {"cfg", "args"} & state.keys():
        raise UserError(f"{path} is not a checkpoint of fairseq: it has no model or no configuration")
    return state


def _reason(error: Exception) -> str:
    """Return why a checkpoint cannot be read, without the texts of torch's readers and of the unpickler."""
    # A damaged file can make torch seek to a place before its beginning: "Invalid argument".
    if isinstance(error, OSError) and error.strerror and error.errno != errno.EINVAL:
        return error.strerror
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "it is damaged, or too large for this machine's memory"
    return "it is damaged, or not a checkpoint"


def refuse_code(path: str | Path, error: Exception) -> None:
    """Says so where torch's ``error`` is that a pickle asks for more than plain values.

    Raises:
        RefusedFile: it is.
    """
    # torch's message is a page long, and its first line advises to switch the safety off.
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden:
        raise RefusedFile(f"refused {path}: loading it could run code, it asks for {forbidden[1]}") from error


def load_as_data(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint on the CPU, as fairseq has saved it, without running anything in it.

    Raises:
        UserError: the file cannot be read, is damaged, could run code, or is not a checkpoint.
    """
    allow_plain_values()
    return read_whole(torch.load, str(path), path, map_location="cpu", weights_only=True)


def _check_sums(path: str) -> None:
    """torch does not look at the sums in its own files, and takes changed bytes for weights."""
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            changed = file.testzip()
        if changed is not None:
            raise ValueError(f"{changed} in it is not what was written")
