"""Patch of fairseq's optimizer for half precision."""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.optim import FP16Optimizer
from torch import Tensor

from mae_lm_fairseq.fairseq_patches.patching import wrap

_EXACT = "fp32_params"
"""Where the state of the optimizer has the float32 weights."""


def save_float32_weights() -> None:
    """Save the float32 copy of the weights that ``--fp16`` and ``--bf16`` train, and restore it.

    fairseq leaves it out of checkpoints. When training resumes, it starts again from weights that were rounded to 11
    bits, or 8 with ``--bf16``, as it still does for a checkpoint without the copy.
    """
    wrap(FP16Optimizer, "state_dict", _state_dict)
    wrap(FP16Optimizer, "load_state_dict", _load_state_dict)


def _state_dict(get: Callable, optimizer: FP16Optimizer) -> dict[str, Any]:
    return get(optimizer) | {_EXACT: [weights.detach() for weights in _exact(optimizer)]}


def _load_state_dict(load: Callable, optimizer: FP16Optimizer, state: dict[str, Any], *args, **kwargs) -> None:
    load(optimizer, state, *args, **kwargs)
    dtype = optimizer.fp16_params[0].dtype
    for own, saved in zip(_exact(optimizer), state.get(_EXACT, ()), strict=False):
        saved = saved.to(own.device)
        # Otherwise the checkpoint's model was changed after training.
        if torch.equal(saved.to(dtype).float(), own):
            own.data.copy_(saved)


def _exact(optimizer: FP16Optimizer) -> list[Tensor]:
    """Return the float32 weights, which are flat and one tensor per device unless fairseq was told otherwise."""
    weights = optimizer.fp32_params
    return list(weights.values()) if isinstance(weights, dict) else weights
