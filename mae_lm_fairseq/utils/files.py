"""Files and directories that appear whole or not at all."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8; a reader sees the old one or all of the new one.

    Raises:
        UserError: the file cannot be written, for example because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        # Lines end as the text has them, as in the CSV of Python's own writer.
        temporary.write_text(text, encoding="utf-8", newline="")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # it has its name, or was not made
            temporary.unlink()


def write_json(path: Path, content: Any) -> None:
    """Write data as JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def directory_while_used(directory: Path) -> Iterator[None]:
    """Make a directory and its parents; those that are still empty when the block ends are removed again."""
    made = [path for path in (directory, *directory.parents) if not os.path.exists(path)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # something is in it, or it was not made
                path.rmdir()


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory that gets its name ``out`` when the ``with`` block ends, and vanishes if it fails.

    Raises:
        UserError: there is something at ``out`` already, or the directory or what is in it cannot be written.
    """
    if os.path.exists(out):  # Path.exists raises where a name is too long
        raise UserError(f"{out} exists already; choose another directory, or take it away first")
    parent, prefix = out.parent, f".{out.name}."
    try:
        with (
            directory_while_used(parent),
            tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name,
        ):
            temporary = Path(name)
            yield temporary
            # It lets nobody else in, and safetensors nobody else read.
            for path in (temporary, *temporary.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            os.rename(temporary, out)
    except UserError:
        raise
    except Exception as error:
        reason = system_error(error)
        if reason is None:
            raise
        raise UserError(f"cannot write {out}: {reason}; nothing of it was kept") from error


def system_error(error: BaseException) -> str | None:
    """Return the operating system's message for an error of a library that writes files, None for any other error.

    torch raises an error of its own on top of the ``OSError``; safetensors and tokenizers, which are written in Rust,
    quote its number.
    """
    cause = error
    while cause is not None:
        if isinstance(cause, OSError):
            return f"{cause.filename}: {cause.strerror}" if cause.filename else cause.strerror or str(cause)
        if quoted := re.search(r"\(os error (\d+)\)", str(cause)):
            return os.strerror(int(quoted[1]))
        cause = cause.__cause__ or cause.__context__
    return None
