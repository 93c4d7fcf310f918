"""Plots of the reproduction: mean and standard deviation over seeds, in the form of the MAE-LM paper's figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.analysis.figures import MORE_COLOURS


class Lines(NamedTuple):
    """A line of a panel, with the values of every seed."""

    x: np.ndarray
    """[points], or [seeds, points] if it differs between seeds, as time does."""
    y: np.ndarray
    """[seeds, points]; NaN for missing seeds or points."""
    is_control: bool = False
    """Whether to plot it in grey, without markers."""


class Panel(NamedTuple):
    """Lines by label, with the labels of the axes."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Lines]


def plot_panels(path: Path, title: str, *panels: Panel, share_y: bool = False, from_zero: bool = False) -> None:
    """Plot panels side by side, with means as lines and standard deviations over the seeds as error bars.

    Args:
        path: the PNG to write.
        title: title of the figure.
        panels: the panels; lines with the same label look the same in all of them.
        share_y: whether the panels share the y axis.
        from_zero: whether the y axis starts at zero.
    """
    from matplotlib.figure import Figure  # optional (extra "analysis")

    figure = Figure(figsize=(1 + 4.4 * len(panels), 4.6), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=share_y)[0]
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    handles = {}
    for axes, panel in zip(grid, panels, strict=True):
        for label, line in panel.lines.items():
            place = labels.index(label)
            x, y = np.atleast_2d(line.x), np.ma.masked_invalid(line.y)
            handles[label] = axes.errorbar(
                x.mean(0),
                y.mean(0),
                yerr=y.std(0, ddof=1) if len(y) > 1 else None,
                xerr=x.std(0, ddof=1) if len(x) > 1 else None,
                color="grey" if line.is_control else MORE_COLOURS[place],
                marker="" if line.is_control else "osD^vPX"[place],
                linestyle=("-", "--", "-.", ":")[place % 4],
                markersize=5,
                capsize=3,
            )
        is_integer = all(np.equal(np.round(line.x), line.x).all() for line in panel.lines.values())
        axes.xaxis.get_major_locator().set_params(integer=is_integer)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        if from_zero:
            axes.set_ylim(0, None)
        axes.grid(alpha=0.25)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{title}\nmean and standard deviation over seeds")
    figure.savefig(path, dpi=150)
