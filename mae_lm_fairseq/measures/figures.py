"""Plots of measures; those of ranks have the form of figures 1 and 5 of the MAE-LM paper."""

from collections.abc import Mapping, Sequence
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

CONTROLS = {"types": "20 most frequent words (median, range)", "groups": "random groups of real tokens"}
"""Controls of exclusivity, by the stem of the names of their values."""


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
    styles = {label: _style(number) for number, label in enumerate(labels)}
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


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
        "markersize": 5,
    }


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


def plot_exclusivity(path: Path, title: str, lines: Mapping[str, Mapping[str, Line]]) -> bool:
    """Plot the exclusivity of ``[MASK]`` against layer beside its controls, one panel per model.

    Args:
        lines: values of :class:`~mae_lm_fairseq.measures.exclusivity.Exclusivity` by name and model.

    Returns:
        Whether any model takes ``[MASK]`` in a layer.
    """
    panels = []
    for model, mask in lines.get("exclusivity_0.9", {}).items():
        panel_lines = {"[MASK] (forced in where the encoder never saw it)": Line(mask.x, 100 * mask.y)}
        bands = {}
        for control, label in CONTROLS.items():
            if model in lines.get(f"{control}_median", {}):
                low = 100 * lines[f"{control}_lowest"][model].y.mean(0)
                middle = 100 * lines[f"{control}_median"][model].y.mean(0)
                high = 100 * lines[f"{control}_highest"][model].y.mean(0)
                panel_lines[label] = Line(mask.x, middle[None])
                bands[label] = (mask.x, low, high)
        panels.append(Panel(model, LAYER, panel_lines, bands))
    label = "fraction of the sum of squares outside the directions of"
    label += "\nreal tokens, less that of held-out ones (percentage points)"
    if panels:
        plot_panels(path, title, *panels, y_label=label, share_y=True, zero=True)
    return bool(panels)


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
