"""Directories, and sets of files, that appear complete or not at all."""

import contextlib
import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_while_used, system_error, write_record, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import uninterrupted
from mae_lm_fairseq.utils.writing import finish_directory, make_empty_directory, remove, sync, temporary_name

RESULTS, REPORT = "results.json", "report.md"
"""Files of an output directory; the first one is there if all that it describes is complete."""
_NEW = "new"


@contextlib.contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """Create an empty directory in the directory ``path``, and remove both when the ``with`` block ends.

    ``path`` is locked meanwhile. A killed process leaves it behind, and the next one that uses it removes it.

    Raises:
        UserError: if another process is using it.
        OSError: if it cannot be created.
    """
    if path.is_symlink() or not path.is_dir():
        remove(path)
    with directory_lock(path):
        path.mkdir(exist_ok=True)  # without a lock, the directory is not made yet
        directory = make_empty_directory(path / _NEW)
        try:
            yield directory
        finally:
            with contextlib.suppress(OSError):  # the disk may be broken; the next start removes it
                remove(directory)
    with contextlib.suppress(OSError):  # removed already, unless it was left behind
        path.rmdir()


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Create a directory that is renamed to ``out`` when the ``with`` block ends, and removed if the block fails.

    Raises:
        UserError: if ``out`` exists already, another process makes it, or it cannot be written.
    """
    if os.path.lexists(out):  # Path.exists raises for names that are too long
        _remove_remnant(temporary_name(out))
        raise UserError(f"{out} exists already; choose another directory, or remove it")
    with _system_errors(out), directory_while_used(out.parent), temporary_directory(temporary_name(out)) as directory:
        yield directory
        finish_directory(directory)
        os.rename(directory, out)
        sync(out.parent)


def _remove_remnant(path: Path) -> None:
    """Remove a temporary directory that a killed process has left behind, unless it is in use."""
    if os.path.lexists(path):
        with contextlib.suppress(UserError, OSError), temporary_directory(path):
            pass


@contextlib.contextmanager
def replacing_files(directory: Path, record: str, stale: Sequence[str] = ()) -> Iterator[Path]:
    """Replace files of a directory that belong together by those that the ``with`` block writes.

    Yields a new directory for them. When the block ends, the old files are removed and the new ones are moved to their
    places. The record is removed first and comes last: where it is, the files belong together.

    Args:
        record: name of the file that says what the others are.
        stale: further names, or patterns of names, whose files are removed.

    Raises:
        UserError: if another process is replacing them, or a file cannot be written.
    """
    with _system_errors(directory), temporary_directory(directory / ".partial") as made:
        yield made
        finish_directory(made)
        new = sorted(os.listdir(made), key=lambda name: (name == record, name))
        old = []
        for pattern in stale:
            old += fnmatch.filter(os.listdir(directory), pattern)
        with uninterrupted():
            retract(directory, record, *old, *new)
            for name in new:
                os.replace(made / name, directory / name)
            sync(directory)


def retract(directory: Path, record: str, *others: str) -> None:
    """Remove a record of files that are about to change, and some of these files.

    Raises:
        OSError: if one cannot be removed.
    """
    for name in (record, *others):
        if not (directory / name).is_dir():
            remove(directory / name)
    sync(directory)


def write_results(directory: Path, results: dict[str, Any], report: str) -> None:
    """Replace ``results.json`` and ``report.md``.

    Raises:
        UserError: if they cannot be written; the old ones stay, unless the disk fails at the end.
    """
    with replacing_files(directory, RESULTS) as made:
        write_text(made / REPORT, report)
        write_record(made / RESULTS, results)


@contextlib.contextmanager
def _system_errors(out: Path) -> Iterator[None]:
    """Name the directory that an error of the operating system keeps from being written."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = system_error(error)
        if reason is None:
            raise
        raise UserError(f"cannot write {out}: {reason}; nothing was left behind") from error
