"""Probe of training processes, however they are started: fairseq tries to import a package of this name.

With this directory in PYTHONPATH, each process that trains writes a JSON file into the directory $PROBE when it ends.
"""

import atexit
import ctypes
import json
import os
import re
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
PRODUCTS = {(owner, name): getattr(owner, name) for owner, name in (
    (torch.Tensor, "__matmul__"), (torch.Tensor, "matmul"), (torch, "matmul"), (torch, "mm"), (torch, "bmm"),
    (torch, "addmm"), (torch, "baddbmm"), (torch, "einsum"), (F, "linear"), (F, "gelu"),
    (F, "scaled_dot_product_attention"),
)}  # fmt: skip
"""Functions that torch may compute with oneDNN."""
record: dict = {"forwards": Counter(), "dtypes": {}, "updates": 0}


def watch(function):
    """Return a function that calls another one; when first called, it records the limits and removes all watches."""

    def watched(*args, **kwargs):
        record["limits"] = {name: os.environ.get(name) for name in LIMITS}
        for (owner, name), original in PRODUCTS.items():
            setattr(owner, name, original)
        return function(*args, **kwargs)

    return watched


def count_forward(module, inputs) -> None:
    """Count the calls of each class of modules; before them, because a recomputation does not end every call."""
    record["forwards"][type(module).__name__] += 1


def see_precision(module, inputs, output) -> None:
    """Record the precision of the last output of each class of modules."""
    if isinstance(output, torch.Tensor):
        record["dtypes"][type(module).__name__] = str(output.dtype)


def see_update(optimizer, args, kwargs) -> None:
    """Count updates and record the optimizer."""
    record["updates"] += 1
    record["optimizer"] = {"name": type(optimizer).__name__, "fused": optimizer.param_groups[0].get("fused")}


def private_memory() -> int:
    """Return the private memory of this process in kB."""
    return int(re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def kept_fraction() -> float:
    """Return the fraction of a freed block of 64 MB that stays in the process."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size = 64 << 20
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    held = private_memory()
    libc.free(block)
    return 1 - (held - private_memory()) * 1024 / size


def write() -> None:
    """Write what has been found, if this process has trained."""
    if record["updates"]:
        record["kept_fraction"] = kept_fraction()
        Path(os.environ["PROBE"], f"{os.getpid()}.json").write_text(json.dumps(record))


for (owner, name), function in PRODUCTS.items():
    setattr(owner, name, watch(function))
register_module_forward_pre_hook(count_forward)
register_module_forward_hook(see_precision)
register_optimizer_step_post_hook(see_update)
atexit.register(write)
raise ImportError("this is not aim")
