"""Plots of effective rank against layer, in the form of figures 1 and 5 of the MAE-LM paper."""

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mae_lm_fairseq.measures.figures import COLOURS, LAYER, MORE_COLOURS

COLUMNS = 3


class Series(NamedTuple):
    """A line in the panel of a model."""

    input: str
    tokens: str
    label: str
    colour: str
    style: str
    marker: str


SERIES = (
    Series("clean", "real", "real tokens, no [MASK] in the text", COLOURS[0], "-", "o"),
    Series("as_trained", "real", "real tokens, [MASK] in the text", COLOURS[1], "--", "s"),
    Series("forced", "real", "real tokens, [MASK] forced into the encoder", COLOURS[3], ":", "D"),
    Series("as_trained", "mask", "[MASK]", COLOURS[2], "-", "^"),
    Series("forced", "mask", "[MASK], forced into the encoder", "#000000", "-.", "v"),
)


def plot_ranks(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot rank against layer with 95 % intervals, one panel per model.

    Args:
        path: the PNG to write.
        models: results of :func:`~mae_lm_fairseq.measures.ranks.model_ranks`.
    """

    def draw(axes, model: dict[str, Any]) -> None:
        for series in SERIES:
            kinds = [row for row in model["ranks"] if (row["input"], row["tokens"]) == series[:2]]
            _line(axes, kinds, "threshold", series.label, series.colour, series.style, series.marker)
        axes.set_ylim(0, None)

    _plot_panels(path, models, draw, "Effective rank by layer" + _masked(models), _rank_label(models))


def plot_exclusivity(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the exclusivity of ``[MASK]`` against layer beside its controls, one panel per model.

    Args: as for :func:`plot_ranks`.
    """

    def draw(axes, model: dict[str, Any]) -> None:
        rows = [row for row in model["exclusivity"] if "types" in row]
        layers = [row["layer"] for row in rows]
        axes.axhline(0, color="black", linewidth=0.8)
        words = [(row["layer"], 100 * value) for row in rows for value in row["types"]]
        axes.plot(*zip(*words, strict=True), "_", color="grey", label="each of the most frequent words")
        low, high = ([100 * find(row["groups"]) for row in rows] for find in (min, max))
        axes.fill_between(layers, low, high, color=COLOURS[1], alpha=0.4, label="random groups of real tokens")
        of_mask = [100 * row["exclusivity_0.9"] for row in rows]
        axes.plot(layers, of_mask, color=COLOURS[2], marker="^", label="[MASK]")

    title = "Exclusive directions: sum of squares outside those of real tokens" + _masked(models)
    _plot_panels(path, models, draw, title, "outside, minus that of held-out\nreal tokens (percentage points)")


def _plot_panels(
    path: Path, models: Sequence[dict[str, Any]], draw: Callable[[Any, dict[str, Any]], None], title: str, label: str
) -> None:
    """Plot one panel per model, with one legend."""
    from matplotlib.figure import Figure  # optional (extra "analysis")

    columns = min(COLUMNS, len(models))
    lines = ceil(len(models) / columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 1.1 + 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=len({model["width"] for model in models}) == 1)
    found: dict[str, Any] = {}
    for axes, model in zip(panels.flat, models, strict=False):
        draw(axes, model)
        axes.set_title(f"{model['label']} (hidden size {model['width']})")
        _layers(axes, model["layers"])
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    for axes in panels[:, 0]:
        axes.set_ylabel(label)
    for axes in panels.flat[len(models) :]:
        axes.remove()
    order = [series.label for series in SERIES]
    ordered = sorted(found, key=lambda name: order.index(name) if name in order else -1)
    figure.legend(
        [found[name] for name in ordered], ordered, loc="outside lower center", ncols=min(2, columns), frameon=False
    )
    figure.suptitle(title, wrap=True)
    figure.savefig(path, dpi=150)


def plot_gaps(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot, for all models, the increase of the real tokens' rank by ``[MASK]`` in the text, against layer.

    Args: as for :func:`plot_ranks`.
    """
    _plot_models(
        path,
        models,
        lambda model, kind: [row for row in model["gaps"] if row["input"] == kind],
        "threshold",
        title="Effect of [MASK] in the text on the rank of real tokens" + _masked(models),
        label=f"rank with [MASK] minus rank without\n({_rank_label(models)})",
    )


def plot_outside(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the fraction of the sum of squares of ``[MASK]`` outside the real tokens' space, against layer.

    Args: as for :func:`plot_ranks`.
    """

    def rows(model: dict[str, Any], kind: str) -> list[dict]:
        names = ("excess", "excess_low", "excess_high")
        return [
            {"layer": row["layer"]} | {name: 100 * row[name] for name in names}
            for row in model["outside"]
            if row["input"] == kind
        ]

    _plot_models(
        path,
        models,
        rows,
        "excess",
        title="[MASK] outside the space of the real tokens around it" + _masked(models),
        label="fraction of [MASK]'s sum of squares outside,\nminus that of the real tokens (percentage points)",
    )


def _plot_models(
    path: Path,
    models: Sequence[dict[str, Any]],
    rows: Callable[[dict[str, Any], str], list[dict]],
    name: str,
    title: str,
    label: str,
) -> None:
    """Plot all models in one panel, with a dotted line where ``[MASK]`` was forced into the encoder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="black", linewidth=0.8)
    for number, model in enumerate(models):
        colour, marker = MORE_COLOURS[number % len(MORE_COLOURS)], "osD^vP*"[number % 7]
        _line(axes, rows(model, "as_trained"), name, model["label"], colour, "-", marker)
        _line(axes, rows(model, "forced"), name, f"{model['label']}, forced [MASK]", colour, ":", marker)
    axes.set(title=title, ylabel=label)
    _layers(axes, max(model["layers"] for model in models))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _line(axes, rows: list[dict], name: str, label: str, colour: str, style: str, marker: str) -> None:
    """Draw a line, with its intervals as a band."""
    if rows:
        layers = [row["layer"] for row in rows]
        low, middle, high = (np.array([row[name + end] for row in rows]) for end in ("_low", "", "_high"))
        axes.fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)
        look = {"color": colour, "linestyle": style, "marker": marker, "markersize": 6}
        face = colour if style == "-" else "white"
        axes.plot(layers, middle, **look, markerfacecolor=face, label=label)


def _layers(axes, count: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel=LAYER, xlim=(-0.2, count + 0.2))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)


def _rank_label(models: Sequence[dict[str, Any]]) -> str:
    return f"directions that hold {100 * models[0]['threshold']:g} % of Σσ²"


def _masked(models: Sequence[dict[str, Any]]) -> str:
    return f" ({100 * models[0]['mask_prob']:g} % masked)"
