"""Locks of directories: one process at a time writes to a directory.

The lock is a POSIX record lock on a hidden file. The kernel releases it when the process ends, however it ends. Forked
children, such as data workers, do not inherit it, so those that outlive a killed process do not hold it. It works
between machines that share a file system.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_while_used

logger = logging.getLogger(__name__)

LOCK = ".lock"
"""Name of the file. It stays behind after a kill, and does no harm."""

_held: dict[tuple[int, int, int], int] = {}
"""Open files of this process's locks, by the process id, and the device and inode of the directory.

Closing any descriptor of the file would release the lock, so each process opens it once. The process id makes a forked
child, which has a copy of this dictionary but no lock, take its own.
"""


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Let no other process lock a directory during the ``with`` block, and create the directory for it.

    Nothing stays behind in a directory that is empty otherwise. If the directory cannot be written to, the block runs
    without a lock, and reports the error in its own words.

    Raises:
        UserError: if another process has the lock.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(directory_while_used(directory))
            key = _key(directory)
            if key not in _held:
                lock_directory(directory)
                stack.callback(_unlock, directory, key)
        yield


def lock_directory(directory: Path) -> None:
    """Lock a directory until this process ends; do nothing if it holds the lock, or on a file system without locks.

    Raises:
        UserError: if another process has the lock, or the file is a link.
        OSError: if the directory cannot be written to.
    """
    path = directory / LOCK
    while (key := _key(directory)) not in _held:
        try:
            descriptor, is_new = _open(path)
        except FileNotFoundError:  # removed in between
            if not directory.exists():
                raise
            continue
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"another process is using {directory} ({holder}); wait until it has ended, end it, or choose another "
                "directory"
            ) from None
        except OSError as error:
            os.close(descriptor)
            logger.warning("%s: cannot be locked (%s); let no second process write there", directory, error.strerror)
            return
        # The process that had the lock may have removed the file in between. A file that this process has not created
        # may be a user's file under another name: it is not written to, but replaced.
        if not _is_file(descriptor, path) or (not is_new and _is_removed(path)):
            os.close(descriptor)
            continue
        _held[key] = descriptor
        if is_new:
            holder = f"process {os.getpid()} on {socket.gethostname()}\n"
            with contextlib.suppress(OSError):  # the disk may be full
                os.pwrite(descriptor, holder.encode(), 0)


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the file, and whether it was created.

    Whoever may write to the directory can lock it, whatever the umask of its first user.

    Raises:
        UserError: if it is a link.
        OSError: if it cannot be opened.
    """
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        directory = os.stat(path.parent)
        with contextlib.suppress(OSError):  # the group of the directory may be none of this user's
            os.fchown(descriptor, -1, directory.st_gid)
        with contextlib.suppress(OSError):  # not all file systems have permissions
            os.fchmod(descriptor, 0o600 | stat.S_IMODE(directory.st_mode) & 0o666)
        return descriptor, True
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW), False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link, whose target would be locked and written to; remove it") from None


def _is_removed(path: Path) -> bool:
    """Remove a file, and return whether that was possible; it may be another user's."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _key(directory: Path) -> tuple[int, int, int]:
    status = os.stat(directory)
    return os.getpid(), status.st_dev, status.st_ino


def _is_file(descriptor: int, path: Path) -> bool:
    """Return whether a path is still the name of an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _unlock(directory: Path, key: tuple[int, int, int]) -> None:
    """Remove the file while it is locked, so that no process can have locked it, and release the lock."""
    if key in _held:
        with contextlib.suppress(OSError):  # the directory may be gone
            os.unlink(directory / LOCK)
        os.close(_held.pop(key))
