"""Checkpoint files: no code in them runs, damage raises a clear error message, and they are written atomically."""

import contextlib
import errno
import os
import pickle
import re
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from mae_lm_fairseq.utils.directories import temporary_directory
from mae_lm_fairseq.utils.errors import RefusedFile, UserError, first_line
from mae_lm_fairseq.utils.files import refuse_pointer, system_error
from mae_lm_fairseq.utils.writing import replacing_file

ALIGNMENT = 64
"""Alignment of torch's tensors in bytes. Most weights in a bundle are aligned alike."""
_LENGTH_BYTES = 8
"""Bytes at the start of a file of safetensors that give the length of its header."""
_BEGINNING = 100
"""Bytes of a file by which a pointer of Git LFS is recognised."""


def allow_plain_values() -> None:
    """Let ``torch.load(weights_only=True)`` read the plain values in fairseq's checkpoints.

    These are ``argparse.Namespace`` (configuration of older fairseq models) and NumPy scalars (metrics computed by
    SciPy and scikit-learn, in the meters and the best score). Without this, resuming fails since torch 2.6. NumPy 1
    pickles its scalars as ``numpy.core...``, NumPy 2 as ``numpy._core...``; both versions must load either.
    """
    make_scalar = np.float64().__reduce__()[0]
    plain = [Namespace, np.dtype]
    plain += [(make_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    for scalar_type in (np.bool_, np.int32, np.int64, np.float16, np.float32, np.float64):
        plain.append(type(np.dtype(scalar_type)))
    torch.serialization.add_safe_globals(plain)


def read_checked(load: Callable, path: str, *args, **kwargs) -> dict[str, Any]:
    """Return the checkpoint that ``load(*args, **kwargs)`` reads from ``path``, after checking its integrity.

    Raises:
        RefusedFile: if reading it could run code.
        UserError: if it is damaged, or not a checkpoint of fairseq.
    """
    with pickle_errors(path, f"cannot read the checkpoint {path}", "it is damaged, or not a checkpoint"):
        state = load(*args, **kwargs)
    if not isinstance(state, dict) or "model" not in state or not {"cfg", "args"} & state.keys():
        raise UserError(f"{path} is not a checkpoint of fairseq: it has no model or no configuration")
    return state


@contextlib.contextmanager
def pickle_errors(path: str | Path, problem: str, otherwise: str) -> Iterator[None]:
    """Check the integrity of a file that the ``with`` block reads, and convert what reading it raises.

    Args:
        problem: the beginning of the message.
        otherwise: the reason in the message, see :func:`unreadable`.

    Raises:
        RefusedFile: if reading it could run code.
        UserError: if it is damaged, or cannot be read.
    """
    try:
        check_sums(path)
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise anything
        refuse_code(path, error)
        raise UserError(f"{problem}: {unreadable(path, error, otherwise)}") from error


def _beginning(path: str | Path) -> bytes:
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(_BEGINNING)


def unreadable(path: str | Path, error: Exception, otherwise: str) -> str:
    """Return why a file cannot be read, from the error of reading it.

    Args:
        otherwise: what is returned if neither the system nor the memory is to blame.

    Raises:
        UserError: if it is a pointer of Git LFS.
    """
    refuse_pointer(_beginning(path), path)
    if is_out_of_memory(error):
        return "not enough memory"
    # EINVAL does not help: torch seeks before the start of a damaged file.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return error.strerror
    return otherwise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, or torch's allocator for the CPU, got no memory from the system."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def refuse_code(path: str | Path, error: Exception) -> None:
    """Raise RefusedFile if ``error`` says that a pickle needs more than plain values; otherwise do nothing."""
    # torch's message is a page long, and its first line advises disabling the protection. It does not name what a
    # pickle of protocol 4 imports, whose frames and strings it refuses; so it does with noise, which is no pickle.
    forbidden = re.search(r"GLOBAL (\S+)|Unsupported operand (140|147|149)\b", str(error))
    if forbidden is None:
        return

    imported = forbidden[1]
    if imported:
        raise RefusedFile(f"refused {path}: loading it could run code, it refers to {imported}") from error
    if os.path.isdir(path) or zipfile.is_zipfile(path) or Path(path).read_bytes()[:1] == pickle.PROTO:
        raise RefusedFile(f"refused {path}: loading it could run code") from error


def load_as_data(path: str | Path, mapped: bool = False) -> dict[str, Any]:
    """Return the content of a fairseq checkpoint on the CPU, without running code in it.

    ``mapped`` leaves tensors on the disk until they are used, if the format allows it.

    Raises:
        UserError: if the file cannot be read, is damaged, could run code, or is not a checkpoint.
    """
    allow_plain_values()
    mapped = mapped and zipfile.is_zipfile(path)
    return read_checked(torch.load, str(path), path, map_location="cpu", weights_only=True, mmap=mapped)


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Save the content of a checkpoint: the file appears complete or not at all.

    Raises:
        UserError: if the file cannot be written, as on a full disk.
    """
    try:
        write_checkpoint(state, path)
    except Exception as error:
        raise_cannot_save(path, error)


def write_checkpoint(state: Any, path: Path) -> None:
    """Write a checkpoint; see :func:`save_checkpoint`, which names the file in its errors."""
    with replacing_file(path) as file:
        torch.save(state, file)


def raise_cannot_save(path: str | Path, error: Exception) -> NoReturn:
    """Raise a UserError for an error of the operating system, such as a full disk; re-raise other errors."""
    reason = system_error(error)
    if reason is None:
        raise error
    raise UserError(
        f"cannot save {path}: {reason}; existing checkpoints are unchanged. Fix the cause, and run the same "
        "command again"
    ) from error


@contextlib.contextmanager
def content_errors(source: str | Path) -> Iterator[None]:
    """Convert what the content of a file makes Python or torch raise in the ``with`` block.

    Such a file may be intact, and of another program or version: that it is damaged, only a checksum can say.

    Raises:
        UserError: in place of a ``ValueError``, with its message, and of what values of other types raise.
        MemoryError: if there is not enough memory.
    """
    try:
        yield
    except ValueError as error:
        raise UserError(f"{source}: {error}") from error
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError) as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from error
        problem = f"it lacks {error}" if isinstance(error, KeyError) else repr(error)
        raise UserError(f"{source} has other content than expected: {problem:.200}") from error


@contextlib.contextmanager
def opened_safetensors(path: Path, remedy: str) -> Iterator[Any]:
    """Open a file of weights.

    Raises:
        UserError: if it is damaged or cannot be read, also inside the ``with`` block; the message ends with the remedy.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {system_error(error)}; {remedy}") from error
    except safetensors.SafetensorError as error:
        refuse_pointer(_beginning(path), path)
        raise UserError(f"{path} is damaged, or of a newer format: {first_line(error):.200}; {remedy}") from error


def load_safetensors(path: Path, remedy: str) -> dict[str, Tensor]:
    """Return the weights in a file, memory-mapped except for unaligned ones, for which torch would round differently.

    Raises:
        UserError: if the file is damaged or cannot be read; the message ends with the remedy.
    """
    with opened_safetensors(path, remedy) as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    for name, weight in weights.items():
        if weight.data_ptr() % ALIGNMENT:
            weights[name] = weight.clone()
    return weights


def save_safetensors(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write contiguous tensors atomically, aligned in the file, so that they are aligned where they are mapped.

    Raises:
        OSError, SafetensorError: if the file cannot be written.
    """
    with temporary_directory(path.with_name(f".{path.name}.unaligned")) as directory:
        # Not directly: the library follows links, or creates files that only their owner can read.
        save_file(dict(weights), directory / path.name, metadata={"format": "pt"})
        with open(directory / path.name, "rb") as source, replacing_file(path) as file:
            length = int.from_bytes(source.read(_LENGTH_BYTES), "little")
            padding = -(_LENGTH_BYTES + length) % ALIGNMENT
            header = source.read(length).ljust(length + padding)
            file.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
            file.write(header)
            shutil.copyfileobj(source, file, 1 << 20)


def value_at(value: Any, *keys: str | int) -> Any:
    """Return the value at a path through nested dictionaries and lists, or None if the path does not exist."""
    try:
        for key in keys:
            value = value[key]
    except (LookupError, TypeError):
        return None
    return value


def check_sums(path: str | Path) -> None:
    """Raise a ValueError if a checksum of a checkpoint is wrong. torch would load changed bytes as weights.

    Also if its parts are larger than the file, because they are compressed or overlap: torch writes no such file, and a
    small one would fill the memory.
    """
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        size = sum(part.file_size for part in file.infolist())
        if size > os.path.getsize(path):
            raise ValueError("its parts are larger than the file")
        if file.testzip() is not None:
            raise ValueError("a checksum is wrong")
