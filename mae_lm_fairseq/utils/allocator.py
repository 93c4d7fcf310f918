"""Memory settings for training."""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from glibc's malloc.h
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables that limit caches of compiled primitives."""


def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next step.

    glibc returns large blocks to the system, and the next step faults them in again page by page; at base size, this
    takes a fifth of the time. Other C libraries are not changed.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def keep_few_primitives(number: int) -> None:
    """Limit two caches of compiled primitives, oneDNN's and that of torch's wrapper around it, whose default is 1,024.

    Batches are ragged, so a later step reuses almost no primitive. A step of MAE-LM needs 52 to 56 in bfloat16; in
    float32 only GELU is one. The others fill memory and fragment what is freed, which then does not fit the next step.
    Values in the environment take precedence. Both limits are read once, with the first primitive.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, str(number))


def keep_few_segments() -> None:
    """Let the CUDA allocator grow its segments, so that ragged batches do not fragment memory.

    A value in the environment takes precedence. It is read once, when CUDA starts. torch before 2.9 does not know the
    second name, and in 2.9 this setting has no effect under that name alone (pytorch 183387).
    """
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if not os.environ.keys() & set(names):
        os.environ |= dict.fromkeys(names, "expandable_segments:True")
