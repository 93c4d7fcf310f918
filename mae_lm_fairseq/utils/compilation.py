"""Compilation of functions for batches of any size."""

import functools
from collections.abc import Callable

import torch
import torch._dynamo.config
from torch import Tensor
from torch._inductor import config as inductor
from torch.fx.experimental import _config as shape_config


@functools.cache
def compiled(function: Callable) -> Callable:
    """Compile a function of tensors, modules, integers and tuples of them, without graph breaks."""
    # Sizes that are equal in one batch by chance must not be compiled as equal.
    shape_config.use_duck_shape = False
    # Graphs that are split for DistributedDataParallel have no dynamic sizes (pytorch 140229).
    torch._dynamo.config.optimize_ddp = False
    # Code that no measurement chooses, so that a resumed run has the same; casts of weights in one kernel, because the
    # host needs longer to launch one than the GPU to run it; no guard on the number of tokens. Not in all versions.
    names = "deterministic", "combo_kernels", "mix_order_reduction_non_strict_mode"
    for config, name in zip((inductor, inductor, inductor.triton), names, strict=True):
        if hasattr(config, name):
            setattr(config, name, True)
    return torch.compile(function, fullgraph=True, dynamic=True)


def product_dtype(states: Tensor) -> torch.dtype:
    """Return the dtype in which matrix products of some hidden states are computed."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
