"""Patches of fairseq's moving average of the weights (``--store-ema``)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from torch import nn

from mae_lm_fairseq.checkpoints.averaging import with_ema
from mae_lm_fairseq.fairseq_patches.patching import replaced, wrap


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
    once = set({weight.data_ptr(): name for name, weight in averages.items()}.values())
    weights = {name: weight for name, weight in model.state_dict().items() if name in once}
    # A model's own method logs what it loads, and may need all weights.
    with replaced(type(ema.model), "load_state_dict", nn.Module.load_state_dict):
        average(ema, SimpleNamespace(state_dict=lambda: weights), updates)


def read_moving_averages_as_data() -> None:
    """Read ``--ema-seed-model`` as every other checkpoint, without running code.

    fairseq calls ``torch.load`` itself, and ends in a traceback if the checkpoint has no EMA weights.
    """
    wrap(checkpoint_utils, "load_ema_from_checkpoint", _load_moving_average)


def _load_moving_average(load: Callable, path: str) -> dict[str, Any]:
    return with_ema(checkpoint_utils.load_checkpoint_to_cpu(path), path)
