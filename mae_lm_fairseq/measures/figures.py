"""Plots of measures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LAYER = "layer (0: embeddings)"
"""Label of an axis."""

# Okabe and Ito's palette, which is distinguishable with colour blindness, and black for a seventh model.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


class Lines(NamedTuple):
    """A line of a panel, with the values of every seed."""

    x: np.ndarray
    """[points]."""
    y: np.ndarray
    """[seeds, points]; NaN for missing points."""


class Band(NamedTuple):
    """A shaded range of a panel."""

    x: np.ndarray
    """[points]."""
    low: np.ndarray
    """[points]; NaN for missing points."""
    high: np.ndarray
    """[points]."""


class Panel(NamedTuple):
    """Lines and bands by label, with the label of the x axis."""

    title: str
    x_label: str
    lines: Mapping[str, Lines]
    bands: Mapping[str, Band] = {}


def lines_by_layer(models: Mapping[str, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, Lines]]:
    """Return values by layer, which are given by model and name, as lines by name and model."""
    lines: dict[str, dict[str, Lines]] = {}
    for model, values in models.items():
        for name, value in values.items():
            lines.setdefault(name, {})[model] = Lines(np.arange(len(value)), np.array([value], dtype=float))
    return lines


def plot_panels(
    path: Path, title: str, *panels: Panel, y_label: str | None = None, share: bool = True, zero: bool = False
) -> None:
    """Plot panels, up to three in a row, with the means over the seeds as lines and every seed as a faint one.

    Args:
        panels: the panels; what has the same label looks the same in all of them.
        y_label: label of the y axes, which then have the same limits; by default each panel has its own.
        share: with ``y_label``, have the same limits.
        zero: draw a line at zero.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 0.9 + 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share and y_label is not None)
    labels = list(dict.fromkeys(label for panel in panels for label in (*panel.lines, *panel.bands)))
    looks, handles = {label: _look(place) for place, label in enumerate(labels)}, {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        if zero:
            axes.axhline(0, color="black", linewidth=0.8)
        handles |= _draw(axes, panel, looks)
    figure.supylabel(y_label or "", fontsize="medium")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    narrow = len(panels) == 1 and len(labels) < 7
    in_order = [handles[label] for label in labels]
    figure.legend(in_order, labels, loc="outside lower center", ncols=1 if narrow else 2, frameon=False)
    has_seeds = any(len(line.y) > 1 for panel in panels for line in panel.lines.values())
    figure.suptitle(f"{title}: mean and every seed" if has_seeds else title, wrap=True)
    figure.savefig(path, dpi=120)


def _look(place: int) -> dict[str, Any]:
    marker, style = "osD^vPX"[place % 7], ("-", "--", "-.", ":")[place % 4]
    return {"color": COLOURS[place % 7], "marker": marker, "linestyle": style, "markersize": 5}


def _draw(axes, panel: Panel, looks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    handles = {}
    for label, band in panel.bands.items():
        handles[label] = axes.fill_between(*band, color=looks[label]["color"], alpha=0.2, linewidth=0)
    for label, line in panel.lines.items():
        y = np.ma.masked_invalid(line.y)
        if len(y) > 1:
            axes.plot(line.x, y.T, color=looks[label]["color"], alpha=0.25, linewidth=0.8)
        [handles[label]] = axes.plot(line.x, y.mean(0), label=label, **looks[label])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title=panel.title, xlabel=panel.x_label)
    axes.grid(alpha=0.25)
    return handles
