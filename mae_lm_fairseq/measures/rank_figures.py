"""Plots of effective rank against layer, in the form of figures 1 and 5 of the MAE-LM paper, and of exclusivity."""

from collections.abc import Iterable, Mapping, Sequence
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

Ranges = Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Lowest values, medians and highest values by layer, by label."""


def plot_ranks(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot rank against layer with 95 % intervals, one panel per model.

    Args:
        path: the PNG to write.
        models: results of :func:`~mae_lm_fairseq.measures.ranks.model_ranks`.
    """
    panels = []
    for model in models:
        rows = {
            label: [row for row in model["ranks"] if (row["input"], row["tokens"]) == kind]
            for kind, label in SERIES.items()
        }
        panels.append(_panel(f"{model['label']} (hidden size {model['width']})", rows, "threshold"))
    title, label = "Effective rank by layer" + _masked(models), _rank_label(models)
    one_width = len({model["width"] for model in models}) == 1
    plot_panels(path, title, *panels, y_label=label, share=one_width, zero=True)


def plot_exclusivity(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the exclusivity of ``[MASK]`` against layer beside its controls, one panel per model.

    Args: as for :func:`plot_ranks`.
    """
    panels = []
    for model in models:
        rows = [row for row in model["exclusivity"] if "types" in row]
        found = {control: np.array([row[control] for row in rows]) for control in ("types", "groups")}
        controls = {name: (of.min(1), np.median(of, 1), of.max(1)) for name, of in found.items() if of.size}
        of_mask = np.array([[row["exclusivity_0.9"] for row in rows]])
        layers = np.array([row["layer"] for row in rows])
        title = f"{model['label']} (hidden size {model['width']})"
        panels.append(exclusivity_panel(title, layers, of_mask, controls))
    plot_exclusivity_panels(path, "Exclusive directions" + _masked(models), panels)


def exclusivity_panel(title: str, layers: np.ndarray, of_mask: np.ndarray, controls: Ranges) -> Panel:
    """Return the panel of a model.

    Args:
        title: its title.
        layers: int[layers].
        of_mask: exclusivity of ``[MASK]``: float[seeds, layers].
        controls: ranges of the exclusivity of ``types`` and ``groups``.
    """
    labels = {"types": "20 most frequent words (median, range)", "groups": "random groups of real tokens"}
    of = {labels[name]: [100 * values for values in ranges] for name, ranges in controls.items()}
    lines = {"[MASK] (forced in where the encoder never saw it)": Lines(layers, 100 * of_mask)}
    lines |= {label: Lines(layers, middle[None]) for label, (_, middle, _) in of.items()}
    return Panel(title, LAYER, lines, {label: Band(layers, low, high) for label, (low, _, high) in of.items()})


def plot_exclusivity_panels(path: Path, title: str, panels: Iterable[Panel]) -> None:
    """Plot the panels of several models; ``path`` is the PNG to write."""
    label = "share of the sum of squares outside the directions of"
    label += "\nreal tokens, less that of held-out ones (percentage points)"
    plot_panels(path, title, *panels, y_label=label, zero=True)


def plot_gaps(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot, for all models, the increase of the real tokens' rank by ``[MASK]`` in the text, against layer.

    Args: as for :func:`plot_ranks`.
    """
    title = "Effect of [MASK] in the text on the rank of real tokens" + _masked(models)
    label = f"rank with [MASK] minus rank without\n({_rank_label(models)})"
    plot_panels(path, title, _panel("", _of_models(models, "gaps"), "threshold"), y_label=label, zero=True)


def plot_outside(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Plot the fraction of the sum of squares of ``[MASK]`` outside the real tokens' space, against layer.

    Args: as for :func:`plot_ranks`.
    """
    title = "[MASK] outside the space of the real tokens around it" + _masked(models)
    label = "fraction of [MASK]'s sum of squares outside,\nminus that of the real tokens (percentage points)"
    panel = _panel("", _of_models(models, "outside"), "excess", scale=100)
    plot_panels(path, title, panel, y_label=label, zero=True)


def _of_models(models: Sequence[dict[str, Any]], name: str) -> dict[str, list[dict]]:
    """Return the rows of all models, by label of model and input."""
    return {
        f"{model['label']}{end}": [row for row in model[name] if row["input"] == kind]
        for model in models
        for kind, end in KINDS.items()
    }


def _panel(title: str, rows: Mapping[str, list[dict]], name: str, scale: float = 1) -> Panel:
    """Return a panel with a line for each label that has rows, and its 95 % intervals as a band."""
    lines, bands = {}, {}
    for label, of in ((label, of) for label, of in rows.items() if of):
        layers = np.array([row["layer"] for row in of])
        low, middle, high = (scale * np.array([row[name + end] for row in of]) for end in ("_low", "", "_high"))
        lines[label], bands[label] = Lines(layers, middle[None]), Band(layers, low, high)
    return Panel(title, LAYER, lines, bands)


def _rank_label(models: Sequence[dict[str, Any]]) -> str:
    return f"directions that hold {100 * models[0]['threshold']:g} % of Σσ²"


def _masked(models: Sequence[dict[str, Any]]) -> str:
    return f" ({100 * models[0]['mask_prob']:g} % masked)"
