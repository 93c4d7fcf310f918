"""Averaged weights: the moving average (EMA) that a checkpoint holds, and the mean of several checkpoints."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from mae_lm_fairseq.utils.errors import UserError

EMA, EXACT_EMA = "ema", "ema_fp32_params"
"""Where fairseq's trainer keeps the moving average, and its float32 copy with ``--ema-fp32``, in ``extra_state``."""


def with_ema(state: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Return a checkpoint's content with the moving average as the model, and without the state of the training.

    Raises:
        UserError: if it has no moving average.
    """
    extra = state.get("extra_state")
    weights = (extra.get(EXACT_EMA) or extra.get(EMA)) if isinstance(extra, dict) else None
    if not isinstance(weights, dict):
        raise UserError(f"{path} has no EMA weights, which --store-ema adds in training; leave out --ema")
    return with_weights(state, dict(weights), "EMA")


def check_file(path: str | Path) -> None:
    """Check that a model whose EMA weights are wanted is not a directory, such as a bundle.

    Raises:
        UserError: if it is.
    """
    if os.path.isdir(path):
        raise UserError(f"--ema is for checkpoints of fairseq-train; {path} is a directory, which has no EMA weights")


def with_weights(state: dict[str, Any], weights: dict[str, Tensor], averaged: str) -> dict[str, Any]:
    """Return a checkpoint's content with other weights, and without the state of the optimizer.

    Args:
        state: content of the checkpoint.
        weights: the weights.
        averaged: how they were averaged.
    """
    kept = {name: value for name, value in state.items() if name != "last_optimizer_state"}
    extra = {name: value for name, value in state["extra_state"].items() if name not in (EMA, EXACT_EMA)}
    return kept | {"model": weights, "extra_state": extra, "averaged": averaged}
