"""Memory settings for training on a CPU."""

import ctypes
import functools
import os

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""From glibc's malloc.h."""


@functools.cache
def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next step.

    glibc returns large blocks to the system, and the next step faults them in again page by page; at base size, this
    takes a fifth of the time. Other C libraries are not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def keep_few_primitives() -> None:
    """Limit oneDNN's cache of compiled primitives from 1,024 to 64.

    Batches are ragged, so a later step reuses almost no primitive. The cached ones fragment the freed memory, which
    then does not fit the next step. For a tiny model in float32, memory grew by 15 % from the second epoch to the tenth
    without the limit and by 0.5 % with it (``scripts/measure_resources.py``), at the same speed. In bfloat16, a step
    needs so many primitives that the limit would cost over a tenth of the time. A value in the environment takes
    precedence. oneDNN reads it once, before its first primitive.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
