"""Plots of effective rank against layer, in the form of figures 1 and 5 of the MAE-LM paper, and of exclusivity.

``models`` are those of ``ranks.json``. Bands are 95 % intervals.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.measures.figures import LAYER, Band, Lines, Panel, plot_panels

SERIES = {
    ("clean", "real"): "real tokens, no [MASK] in the text",
    ("as_trained", "real"): "real tokens, [MASK] in the text",
    ("as_trained", "mask"): "[MASK]",
    ("forced", "real"): "real tokens, [MASK] forced into the encoder",
    ("forced", "mask"): "[MASK], forced into the encoder",
}
"""Lines in the panel of a model, by input and tokens."""

KINDS = {"as_trained": "", "forced": ", forced [MASK]"}
"""Ends of labels, by input."""

CONTROLS = {"types": "20 most frequent words (median, range)", "groups": "random groups of real tokens"}
"""Labels of the controls of exclusivity."""


def plot_ranks(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot rank against layer, one panel per model."""
    panels = []
    for model in models:
        of_kind = {
            label: [row for row in model["ranks"] if (row["input"], row["tokens"]) == kind]
            for kind, label in SERIES.items()
        }
        panels.append(_panel(f"{model['label']} (hidden size {model['width']})", of_kind, "threshold"))
    title, one_width = "Effective rank by layer" + title_end(models), len({model["width"] for model in models}) == 1
    plot_panels(path, title, *panels, y_label=_rank_label(models), share=one_width, zero=True)


def plot_gaps(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot, for all models, the increase of the real tokens' rank by ``[MASK]`` in the text, against layer."""
    title = "Effect of [MASK] in the text on the rank of real tokens" + title_end(models)
    label = f"rank with [MASK] minus rank without\n({_rank_label(models)})"
    plot_panels(path, title, _panel("", _of_models(models, "gaps"), "threshold"), y_label=label, zero=True)


def plot_outside(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the fraction of the sum of squares of ``[MASK]`` outside the real tokens' space, against layer."""
    title = "[MASK] outside the space of the real tokens around it" + title_end(models)
    label = "fraction of [MASK]'s sum of squares outside,\nminus that of the real tokens (percentage points)"
    panel = _panel("", _of_models(models, "outside"), "excess", scale=100)
    plot_panels(path, title, panel, y_label=label, zero=True)


def plot_exclusivity(path: Path, title: str, lines: Mapping[str, Mapping[str, Lines]]) -> bool:
    """Plot the exclusivity of ``[MASK]`` against layer beside its controls, one panel per model.

    Args:
        lines: values of :class:`~mae_lm_fairseq.measures.rank.Exclusivity` by name and model.

    Returns:
        Whether any model takes ``[MASK]`` in a layer.
    """
    panels = []
    for model, of_mask in lines.get("exclusivity_0.9", {}).items():
        shown = {"[MASK] (forced in where the encoder never saw it)": Lines(of_mask.x, 100 * of_mask.y)}
        ranges = {}
        for control, label in CONTROLS.items():
            ends = [lines.get(f"{control}_{end}", {}).get(model) for end in ("lowest", "median", "highest")]
            if None not in ends:
                low, middle, high = (100 * line.y.mean(0) for line in ends)
                shown[label], ranges[label] = Lines(of_mask.x, middle[None]), Band(of_mask.x, low, high)
        panels.append(Panel(model, LAYER, shown, ranges))
    label = "share of the sum of squares outside the directions of"
    label += "\nreal tokens, less that of held-out ones (percentage points)"
    if panels:
        plot_panels(path, title, *panels, y_label=label, zero=True)
    return bool(panels)


def _of_models(models: Sequence[dict[str, Any]], name: str) -> dict[str, list[dict]]:
    return {
        f"{model['label']}{end}": [row for row in model[name] if row["input"] == kind]
        for model in models
        for kind, end in KINDS.items()
    }


def _panel(title: str, rows: Mapping[str, list[dict]], name: str, scale: float = 1) -> Panel:
    """Return a panel with a line and its interval for each label that has rows."""
    lines, bands = {}, {}
    for label, of in ((label, of) for label, of in rows.items() if of):
        layers = np.array([row["layer"] for row in of])
        low, middle, high = (scale * np.array([row[name + end] for row in of]) for end in ("_low", "", "_high"))
        lines[label], bands[label] = Lines(layers, middle[None]), Band(layers, low, high)
    return Panel(title, LAYER, lines, bands)


def _rank_label(models: Sequence[dict[str, Any]]) -> str:
    return f"directions that hold {100 * models[0]['threshold']:g} % of Σσ²"


def title_end(models: Sequence[dict[str, Any]]) -> str:
    """Return the end of a title: how much was masked."""
    return f" ({100 * models[0]['mask_prob']:g} % masked)"
