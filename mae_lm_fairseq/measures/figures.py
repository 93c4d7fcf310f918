"""Plots of losses and measures."""

from collections.abc import Mapping
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
