"""Child processes, their memory, and permissions on Linux."""

import ctypes
import os
import re
import struct
from pathlib import Path

_VERSION_3 = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


def children(pid: int) -> list[int]:
    """Return the ids of the children of a process, sorted."""
    lists = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return sorted(int(child) for ids in lists for child in ids.split())


def private_memory(pid: int) -> int:
    """Return the bytes of a process's private memory, without mapped files, which processes share."""
    size = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(size[1]) << 10 if size else 0


def obey_permissions() -> None:
    """Drop root's capability to ignore file permissions, so that a directory can be made unwritable.

    Raises:
        OSError: if the system refuses.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION_3, 0))
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable; low words, then high words
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    words = list(struct.unpack("=6I", sets.raw[:24]))
    words[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    sets = ctypes.create_string_buffer(struct.pack("=6I", *words))
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")
