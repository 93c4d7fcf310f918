"""Memory of training on a CPU."""

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""


@functools.cache
def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next step.

    glibc gives large blocks back to the system and has them faulted in again page by page, on every step: at base
    size that takes a fifth of the time. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
