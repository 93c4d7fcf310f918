"""Memory of training on a CPU."""

import ctypes
import functools
import os

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


def keep_few_primitives() -> None:
    """Let oneDNN keep 64 of the routines that it compiles for each shape, and not 1,024.

    Batches are ragged, so next to none of them is used again in another step; but they lie between the blocks of
    freed memory, which then do not suit the next step. Without this a tiny model in float32 grew by 15 % from the
    second epoch to the tenth, with it by 0.5 % (``scripts/measure_resources.py``), and was not slower. In bfloat16 a
    step needs so many that this would cost over a tenth of the time. What the environment says goes first; oneDNN
    reads it before its first routine, and not again.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
