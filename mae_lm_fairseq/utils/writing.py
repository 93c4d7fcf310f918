"""Writing and removing that never reaches what a link points to.

An output directory may come from somebody else, with a link at a name that we write. What is new is created under a
name where nothing exists, and then renamed: a link is replaced, not its target. A directory that is a link, such as one
on a scratch disk, is used like any other. No other module opens a file for writing or removes one.

Permissions follow the umask.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mae_lm_fairseq.utils.errors import UserError


def temporary_name(path: Path) -> Path:
    """Return the name under which a file or directory is made before it is renamed.

    It is always the same, so that a killed process leaves one remnant, which the next one removes.
    """
    return path.with_name(f".{path.name}.partial")


def create_file(path: Path) -> BinaryIO:
    """Create a file, in place of a file or link of this name, and open it for writing.

    Raises:
        OSError: if it cannot be created.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    return open(descriptor, "wb")


def append_to_file(path: Path) -> BinaryIO:
    """Open a file to append to it, and create it unless it exists.

    Raises:
        UserError: if it is a link, also a hard one, whose target would be changed, or a pipe or device.
        OSError: if it cannot be opened.
    """
    # O_NONBLOCK: a pipe would wait for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise UserError(f"{path} is a link or a pipe, which is not written through; remove it") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise UserError(f"{path} is a device, or a file that also has another name, and is not written to; remove it")
    return open(descriptor, "ab")


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the ``with`` block ends, and is removed if the block fails.

    It is on the disk when it replaces the old one, which may be deleted for it.

    Raises:
        OSError: if it cannot be written.
    """
    temporary = temporary_name(path)
    try:
        with create_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # it was never created
            temporary.unlink()
        raise
    sync(path.parent)


def remove(path: Path, below: Path | None = None) -> None:
    """Remove a file, a link (not what it points to), or a directory and its content; do nothing if there is none.

    Args:
        below: a directory that the path is in. Of the directories between the two, none may be a link: what is behind
            it may be somebody else's.

    Raises:
        UserError: if one is.
        OSError: if something cannot be removed.
    """
    if below is not None:
        check_no_link(path.parent, below)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_no_link(directory: Path, below: Path) -> None:
    """Check that neither a directory nor those between it and ``below`` are links, before its files are changed.

    Raises:
        UserError: if one is.
    """
    if directory.resolve() != below.resolve() / directory.relative_to(below):
        raise UserError(
            f"{directory} leads to another directory by a link, whose files are not changed or removed; unlink it"
        )


def make_empty_directory(path: Path) -> Path:
    """Create a directory, in place of whatever has this name, and return its path.

    Raises:
        OSError: if it cannot be created.
    """
    remove(path)
    path.mkdir()
    return path


def finish_directory(directory: Path) -> None:
    """Prepare a new directory for its final name: permissions as the umask says, and everything on the disk.

    The permissions of the directory itself are the umask's. Some libraries create files that only their owner can read.

    Raises:
        OSError: if something cannot be changed.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    for path in directory.rglob("*"):
        wanted = mode if path.is_dir() else mode & 0o666
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) != wanted:
            path.chmod(wanted)
        sync(path)
    sync(directory)


def sync(path: Path) -> None:
    """Write a file, or the names in a directory, to the disk.

    Raises:
        OSError: if that fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
