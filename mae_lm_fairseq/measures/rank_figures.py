"""Plots of ranks, in the form of figures 1 and 5 of the MAE-LM paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.measures.figures import LAYER, Line, Panel, plot_panels

SERIES = {
    ("clean", "real"): "real tokens, no [MASK] in the text",
    ("as_trained", "real"): "real tokens, [MASK] in the text",
    ("as_trained", "mask"): "[MASK]",
    ("forced", "real"): "real tokens, [MASK] forced into the encoder",
    ("forced", "mask"): "[MASK], forced into the encoder",
}
"""Lines in the panel of a model, by input and tokens."""

INPUT_ENDINGS = {"as_trained": "", "forced": ", forced [MASK]"}
"""Ends of the labels of lines by input, where every line is of one model."""


def plot_ranks(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot rank against layer with 95 % intervals, one panel per model of ``ranks.json``."""
    panels = []
    for model in models:
        rows = {label: [] for label in SERIES.values()}
        for row in model["ranks"]:
            label = SERIES[row["input"], row["tokens"]]
            rows[label].append(row)
        panels.append(_panel(f"{model['label']} (hidden size {model['width']})", rows, "threshold"))
    title = "Effective rank by layer" + title_end(models)
    has_one_width = len({model["width"] for model in models}) == 1
    plot_panels(path, title, *panels, y_label=_rank_label(models), share_y=has_one_width, zero=True)


def plot_gaps(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot, for all models, the increase of the real tokens' rank by ``[MASK]`` in the text, against layer."""
    title = "Effect of [MASK] in the text on the rank of real tokens" + title_end(models)
    label = f"rank with [MASK] minus rank without\n({_rank_label(models)})"
    panel = _panel("", _rows_of_models(models, "gaps"), "threshold")
    plot_panels(path, title, panel, y_label=label, zero=True)


def plot_outside(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the fraction of the sum of squares of ``[MASK]`` outside the real tokens' space, against layer."""
    title = "[MASK] outside the space of the real tokens around it" + title_end(models)
    label = "fraction of [MASK]'s sum of squares outside,\nminus that of the real tokens (percentage points)"
    panel = _panel("", _rows_of_models(models, "outside"), "excess", scale=100)
    plot_panels(path, title, panel, y_label=label, zero=True)


def _rows_of_models(models: Sequence[dict[str, Any]], name: str) -> dict[str, list[dict]]:
    """Return the rows of a list of ``ranks.json``, by the label of their line."""
    rows = {}
    for model in models:
        for input_name, ending in INPUT_ENDINGS.items():
            label = f"{model['label']}{ending}"
            rows[label] = [row for row in model[name] if row["input"] == input_name]
    return rows


def _panel(title: str, rows: Mapping[str, list[dict]], name: str, scale: float = 1) -> Panel:
    """Return a panel of values with their intervals, given the rows of each line, without empty lines."""
    lines = {}
    bands = {}
    for label, line_rows in rows.items():
        if not line_rows:
            continue
        layers = _column(line_rows, "layer")
        low = scale * _column(line_rows, f"{name}_low")
        middle = scale * _column(line_rows, name)
        high = scale * _column(line_rows, f"{name}_high")
        lines[label] = Line(layers, middle[None])
        bands[label] = (layers, low, high)
    return Panel(title, LAYER, lines, bands)


def _column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def _rank_label(models: Sequence[dict[str, Any]]) -> str:
    return f"directions that hold {100 * models[0]['threshold']:g} % of Σσ²"


def title_end(models: Sequence[dict[str, Any]]) -> str:
    """Return the end of a title: how much was masked."""
    return f" ({100 * models[0]['mask_prob']:g} % masked)"
