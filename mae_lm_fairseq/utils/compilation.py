"""Compilation of functions for batches of any size."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor


@functools.cache
def compiled(function: Callable) -> Callable:
    """Compile a function of tensors, modules, integers and tuples of them, without graph breaks."""
    import torch._dynamo.config  # takes as long as importing torch itself
    from torch.fx.experimental import _config as shape_config

    # Sizes that are equal in one batch by chance must not be compiled as equal.
    shape_config.use_duck_shape = False
    # Graphs that are split for DistributedDataParallel have no dynamic sizes (pytorch 140229).
    torch._dynamo.config.optimize_ddp = False
    return torch.compile(function, fullgraph=True, dynamic=True, options=inductor_options())


def inductor_options() -> dict[str, bool]:
    """Return settings of inductor in torch 2.11 and later; not for the whole process, because dynamo resets the first.

    No measurement chooses the code, so that a resumed run has the same; casts of a layer's weights are one kernel, as
    launching one takes the host longer than the GPU needs for it; no number of tokens is a guard.
    """
    from torch._inductor import config as inductor

    names = "deterministic", "combo_kernels", "triton.mix_order_reduction_non_strict_mode"
    return dict.fromkeys(names, True) if hasattr(inductor.triton, names[2].partition(".")[2]) else {}


def product_dtype(states: Tensor) -> torch.dtype:
    """Return the dtype in which matrix products of some hidden states are computed."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
