"""Averaged weights: the moving average (EMA) that a checkpoint holds, and the mean of several checkpoints."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data, value_at
from mae_lm_fairseq.checkpoints.validation import check_tensors, saved_config, tied_names
from mae_lm_fairseq.core.config import TRAINING_OPTIONS, plain_values
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
        raise UserError(f"{path} has no EMA weights, which --store-ema adds in training; remove --ema")
    return with_weights(state, dict(weights), "EMA")


def read_ema(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint with the moving average as the model, see :func:`with_ema`.

    Raises:
        UserError: if it is a directory, cannot be read, or has no moving average.
    """
    check_file(path)
    return with_ema(load_as_data(path), path)


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
    extra = {name: value for name, value in state.get("extra_state", {}).items() if name not in (EMA, EXACT_EMA)}
    return kept | {"model": weights, "extra_state": extra, "averaged": averaged}


def average(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the content of a checkpoint with the mean of the weights of several checkpoints, in float32.

    Everything else is that of the checkpoint with most updates. At most two checkpoints are in memory.

    Raises:
        UserError: if a checkpoint cannot be read, or two are of different networks.
    """
    network, newest, total, updates = {}, {}, {}, []
    for path in paths:
        state = load_as_data(path)
        described = _network(state, path)
        network = network or described
        if differing := [name for name in network | described if network.get(name) != described.get(name)]:
            name, values = differing[0], [str(x.get(differing[0], "missing")) for x in (network, described)]
            raise UserError(f"{paths[0]} and {path} are of different networks: {name} is {' and '.join(values)}")
        for name, weight in state["model"].items():
            total[name] = total[name].add_(weight) if name in total else weight.double()
        updates.append(_updates(state))
        if updates[-1] == max(updates):
            newest = state
    mean = {name: (weight / len(paths)).float() for name, weight in total.items()}
    mean |= {name: mean[first] for name, first in tied_names(saved_config(newest, paths[0]), mean).items()}
    return with_weights(
        newest, mean, f"mean of {len(paths)} checkpoints, updates {', '.join(map(str, sorted(updates)))}"
    )


def _network(state: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Return what must be equal in checkpoints that are averaged: options, dictionary and shapes of weights."""
    check_tensors(state["model"], path)
    values = plain_values(saved_config(state, path))
    options = {name: value for name, value in values.items() if name not in TRAINING_OPTIONS}
    shapes = {name: list(weight.shape) for name, weight in state["model"].items()}
    return options | shapes | {"the dictionary": value_at(state, "task_state", "dictionary")}


def _updates(state: dict[str, Any]) -> int:
    updates = value_at(state, "optimizer_history", -1, "num_updates")
    return updates if isinstance(updates, int) else 0
