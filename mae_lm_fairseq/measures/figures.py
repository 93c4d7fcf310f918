"""Plots of losses and scores."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.utils.errors import UserError

LAYER, MASKED_LOSS = "layer (0: embeddings)", "loss on masked tokens (nats)"
"""Axis labels."""

Curve = tuple[np.ndarray, np.ndarray]
"""Numbers of updates, and a value for each."""

# Okabe and Ito's palette, which is distinguishable with colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
# The palette's other colours and black, for figures with up to seven models.
MORE_COLOURS = (*COLOURS, "#56B4E9", "#E69F00", "#000000")


def check_matplotlib() -> None:
    """Check that matplotlib is installed; call this before long work that ends in figures.

    Raises:
        UserError: if matplotlib, from the extra "analysis", is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib; pip install matplotlib, or this package with its extra analysis")


def plot_losses(
    path: Path, title: str, train: Mapping[str, Curve], valid: Mapping[str, Curve], unigram_entropy: float
) -> None:
    """Plot the validation loss of several runs against updates, with a faint training loss.

    Args:
        path: the PNG to write.
        title: title of the figure.
        train: training losses in nats by label of the run.
        valid: validation losses in nats by the same labels.
        unigram_entropy: of the validation text, in nats: the loss of a model that knows only token frequencies.
    """
    # Imported here because matplotlib is optional (extra "analysis").
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.margins(y=0.1)
    axes.axhline(unigram_entropy, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"unigram entropy of the validation text: {unigram_entropy:.2f}",
        (1, unigram_entropy),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    for (label, curve), colour, marker in zip(valid.items(), COLOURS, "osD^", strict=False):
        axes.plot(*train[label], color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(*curve, color=colour, marker=marker, markersize=4, label=f"{label}: {curve[1][-1]:.2f}")
    axes.set(title=title, xlabel="updates", ylabel=MASKED_LOSS, xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.legend(title="validation (faint: training)", frameon=False)
    figure.savefig(path, dpi=150)


def plot_seeds(path: Path, title: str, scores: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Plot every seed as a dot and the median as a line, with one panel per task and the models side by side.

    Args:
        path: the PNG to write.
        title: title of the figure.
        scores: scores of all seeds in per cent, by task and label of the model.
    """
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for of_task in scores.values() for label in of_task))
    columns = min(len(scores), 4)
    rows = -(-len(scores) // columns)
    width = max(6.5, 1.2 + columns * (1.0 + 0.5 * len(labels)))
    figure = Figure(figsize=(width, 0.9 + 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (task, of_task) in zip(panels, scores.items(), strict=False):
        for place, label in enumerate(labels):
            values = np.array(of_task.get(label, ()))
            colour, marker = COLOURS[place % len(COLOURS)], "osD^"[place % 4]
            spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else np.zeros(len(values))
            axes.plot(place + spread, values, marker, color=colour, alpha=0.6, markersize=5, label=label)
            if len(values):
                axes.hlines(np.median(values), place - 0.3, place + 0.3, color=colour, linewidth=2)
        axes.set(title=task, xlim=(-0.6, len(labels) - 0.4), xticks=[])
        axes.margins(y=0.15)
        axes.grid(axis="y", alpha=0.25)
    for axes in panels[len(scores) :]:
        axes.set_axis_off()
    for row in range(rows):
        panels[row * columns].set_ylabel("per cent")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"{title}: seeds (dots) and medians (lines)")
    figure.savefig(path, dpi=150)


class Lines(NamedTuple):
    """A line of a panel, with the values of every seed."""

    x: np.ndarray
    """[points]."""
    y: np.ndarray
    """[seeds, points]; NaN for missing points."""


class Panel(NamedTuple):
    """Lines by label, with the label of the x axis."""

    title: str
    x_label: str
    lines: Mapping[str, Lines]


def plot_panels(path: Path, title: str, *panels: Panel) -> None:
    """Plot panels, three in a row, with the means over the seeds as lines and every seed as a faint one.

    Args:
        path: the PNG to write.
        title: title of the figure.
        panels: the panels; lines with the same label look the same in all of them.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 0.9 + 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    handles = {}
    for axes, panel in zip(grid, panels, strict=False):
        for label, line in panel.lines.items():
            place = labels.index(label)
            colour, y = MORE_COLOURS[place % len(MORE_COLOURS)], np.ma.masked_invalid(line.y)
            style = {"marker": "osD^vPX"[place % 7], "linestyle": ("-", "--", "-.", ":")[place % 4], "markersize": 5}
            axes.plot(line.x, y.T, color=colour, alpha=0.25, linewidth=0.8)
            [handles[label]] = axes.plot(line.x, y.mean(0), color=colour, **style)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(title=panel.title, xlabel=panel.x_label)
        axes.grid(alpha=0.25)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{title}: mean and every seed")
    figure.savefig(path, dpi=120)
