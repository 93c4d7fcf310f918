"""Plots of measures: lines and bands in panels."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

Format = Literal["pdf", "svg"]
"""Format of figures besides PNG."""
LAYER = "layer (0: embeddings)"

# Okabe and Ito's palette, which is distinguishable with colour blindness, and black for a seventh model.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
LINE_STYLES = ("-", "--", "-.", ":")


class Line(NamedTuple):
    """A line of a panel, with the values of every seed."""

    x: np.ndarray
    """[points]."""
    y: np.ndarray
    """[seeds, points]; NaN for missing points."""


Band = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A shaded range of a panel: x, and its lower and upper ends, each [points]; NaN for missing points."""


class Panel(NamedTuple):
    """Lines and bands by label, with the labels of the axes, and a dotted line for a baseline."""

    title: str
    x_label: str
    lines: Mapping[str, Line]
    bands: Mapping[str, Band] = {}
    y_label: str = ""
    baseline: tuple[str, float] | None = None


def lines_by_layer(models: Mapping[str, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, Line]]:
    """Return values by layer, which are given by model and name, as lines by name and model."""
    lines: dict[str, dict[str, Line]] = {}
    for model, values in models.items():
        for name, by_layer in values.items():
            layers = np.arange(len(by_layer))
            line = Line(layers, np.array([by_layer], dtype=float))
            lines.setdefault(name, {})[model] = line
    return lines


def plot_panels(
    path: Path, title: str, *panels: Panel, y_label: str = "", share_y: bool = False, zero: bool = False
) -> None:
    """Plot panels, up to three in a row, with the means over the seeds as lines and every seed as a faint one.

    Args:
        panels: the panels; what has the same label looks the same in all of them.
        y_label: label of the y axes of all panels, which have none of their own.
        share_y: whether all y axes have the same limits.
        zero: draw a line at zero.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 0.9 + 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    figure.supylabel(y_label, fontsize="medium")
    for axes in grid.flat[len(panels) :]:
        axes.remove()

    labels: dict[str, None] = {}
    for panel in panels:
        labels |= dict.fromkeys((*panel.lines, *panel.bands))
    styles = {}
    for label, colour, marker, line in zip(labels, cycle(COLOURS), cycle(MARKERS), cycle(LINE_STYLES), strict=False):
        styles[label] = {"color": colour, "marker": marker, "linestyle": line, "markersize": 5}
    handles = dict.fromkeys(labels)  # in the order of the labels
    for axes, panel in zip(grid.flat, panels, strict=False):
        if zero:
            axes.axhline(0, color="black", linewidth=0.8)
        handles |= _draw(axes, panel, styles)

    legend_columns = 1 if len(panels) == 1 and len(labels) < 7 else 2
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=legend_columns, frameon=False)
    has_seeds = any(len(line.y) > 1 for panel in panels for line in panel.lines.values())
    figure.suptitle(f"{title}: mean and every seed" if has_seeds else title, wrap=True)
    figure.savefig(path, dpi=120)


def _draw(axes, panel: Panel, styles: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    handles = {}
    for label, band in panel.bands.items():
        handles[label] = axes.fill_between(*band, color=styles[label]["color"], alpha=0.2, linewidth=0)
    for label, line in panel.lines.items():
        style = styles[label]
        y = np.ma.masked_invalid(line.y)
        if len(y) > 1:
            axes.plot(line.x, y.T, color=style["color"], alpha=0.25, linewidth=0.8)
        [handles[label]] = axes.plot(line.x, y.mean(0), label=label, **style)
    if panel.baseline:
        label, value = panel.baseline
        handles[label] = axes.axhline(value, color="black", linestyle=":")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.25)
    return handles
