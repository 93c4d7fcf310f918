"""Averaged weights: the moving average (EMA) that a checkpoint holds, and the mean of several checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mae_lm_fairseq.core.config import TRAINING_OPTIONS, plain_values
from mae_lm_fairseq.trained.checkpoint_file import content_errors, load_as_data, value_at
from mae_lm_fairseq.trained.validation import check_tensors, saved_config, shapes_of, tied_names
from mae_lm_fairseq.utils.errors import UserError

EMA, EXACT_EMA = "ema", "ema_fp32_params"
"""Where fairseq's trainer keeps the moving average, and its float32 copy with ``--ema-fp32``, in ``extra_state``."""


def with_ema(state: dict[str, Any], path: str | Path, option: str = "--ema") -> dict[str, Any]:
    """Return a checkpoint's content with the moving average as the model, and without the state of the training.

    Args:
        option: the option that asks for it, for the message.

    Raises:
        UserError: if it has no moving average.
    """
    weights = value_at(state, "extra_state", EXACT_EMA) or value_at(state, "extra_state", EMA)
    if not isinstance(weights, dict):
        raise UserError(f"{path} has no EMA weights, which --store-ema adds in training; remove {option}")
    return _with_weights(state, dict(weights), "EMA")


def _with_weights(state: dict[str, Any], weights: dict[str, Tensor], averaged: str) -> dict[str, Any]:
    extra = dict(state.get("extra_state", {}))
    for name in (EMA, EXACT_EMA):
        extra.pop(name, None)
    changed = state | {"model": weights, "extra_state": extra, "averaged": averaged}
    changed.pop("last_optimizer_state", None)
    return changed


def average(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Return the content of a checkpoint with the mean of the weights of several checkpoints, in float32.

    Everything else is that of the checkpoint with most updates. At most two checkpoints are in memory.

    Raises:
        UserError: if a checkpoint cannot be read, or two are of different networks.
    """
    network = {}
    sums = {}
    updates = []
    for path in paths:
        state = load_as_data(path)
        described = _described_network(state, path)
        network = network or described
        for name in network | described:
            first, value = network.get(name), described.get(name)
            if first != value:
                raise UserError(f"{paths[0]} and {path} are of different networks: {name} is {first} and {value}")
        for name, weight in state["model"].items():
            sums[name] = sums[name].add_(weight) if name in sums else weight.double()
        count = value_at(state, "optimizer_history", -1, "num_updates")
        updates.append(count if isinstance(count, int) else 0)
        if updates[-1] == max(updates):
            newest = state
    mean = {name: (weight / len(paths)).float() for name, weight in sums.items()}
    mean |= {name: mean[first] for name, first in tied_names(saved_config(newest), mean).items()}
    numbers = ", ".join(map(str, sorted(updates)))
    return _with_weights(newest, mean, f"mean of {len(paths)} checkpoints, updates {numbers}")


def _described_network(state: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Return what must be the same in checkpoints for a mean of their weights: options, shapes and dictionary."""
    with content_errors(path):
        check_tensors(state["model"])
        described = plain_values(saved_config(state)) | shapes_of(state["model"])
    for name in TRAINING_OPTIONS:
        described.pop(name, None)
    return described | {"the dictionary": value_at(state, "task_state", "dictionary")}
