"""Patches of the weights that fairseq keeps beside the model's: float32 copies, moving averages (``--store-ema``)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from fairseq.optim import FP16Optimizer
from torch import Tensor, nn

from mae_lm_fairseq.fairseq_patches.patching import patch, replaced, wrap
from mae_lm_fairseq.trained.averaging import with_ema

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
    exact = [weights.detach() for weights in _exact(optimizer)]
    return get(optimizer) | {_EXACT: exact}


def _load_state_dict(load: Callable, optimizer: FP16Optimizer, state: dict[str, Any], *args, **kwargs) -> None:
    load(optimizer, state, *args, **kwargs)
    dtype = optimizer.fp16_params[0].dtype
    exact = state.get(_EXACT, ())
    for weights, saved in zip(_exact(optimizer), exact, strict=False):
        saved = saved.to(weights.device)
        rounded = saved.to(dtype).float()
        # Otherwise the checkpoint's model was changed after training.
        if torch.equal(rounded, weights):
            weights.data.copy_(saved)


def _exact(optimizer: FP16Optimizer) -> list[Tensor]:
    """Return the float32 weights, which are flat and one tensor per device unless fairseq was told otherwise."""
    weights = optimizer.fp32_params
    return list(weights.values()) if isinstance(weights, dict) else weights


def average_each_weight_once() -> None:
    """Average tied weights once per update, and count the updates of ``--ema-update-freq`` from the start.

    fairseq averages a weight once for each of its names: the embeddings, which are also the output weights, decay with
    the square of ``--ema-decay``. It starts to count at 0 when training resumes.
    """
    wrap(EMA, "step", _step)
    wrap(EMA, "_step_internal", _average)


def _step(step: Callable, ema: EMA, model: nn.Module, updates: int | None = None) -> None:
    if updates is not None:
        ema.update_freq_counter = (updates - 1) % ema.config.ema_update_freq
    step(ema, model, updates)


def _average(average: Callable, ema: EMA, model: nn.Module, updates: int | None = None) -> None:
    averages = ema.fp32_params if ema.config.ema_fp32 else ema.model.state_dict()
    name_of_memory = {average.data_ptr(): name for name, average in averages.items()}
    names = set(name_of_memory.values())
    weights = {name: weight for name, weight in model.state_dict().items() if name in names}
    # A model's own method logs what it loads, and may need all weights.
    with replaced(type(ema.model), "load_state_dict", nn.Module.load_state_dict):
        average(ema, SimpleNamespace(state_dict=lambda: weights), updates)


@patch(checkpoint_utils, "load_ema_from_checkpoint")
def read_moving_averages_as_data(load: Callable, path: str) -> dict[str, Any]:
    """Read ``--ema-seed-model`` as every other checkpoint, without running code.

    fairseq calls ``torch.load`` itself, and ends in a traceback if the checkpoint has no EMA weights.
    """
    return with_ema(checkpoint_utils.load_checkpoint_to_cpu(path), path, "--ema-seed-model")
