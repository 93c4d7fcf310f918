"""Figures of a study's report."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mae_lm_fairseq.measures.figures import COLOURS, LAYER, Lines
from mae_lm_fairseq.study.contrasts import Outcome
from mae_lm_fairseq.study.endpoints import Values
from mae_lm_fairseq.study.plan import Measure


def value_names(measured: Mapping[str, Values]) -> dict[str, bool]:
    """Return the names of all values of a measure, and whether they are by layer."""
    return {
        name: isinstance(values.runs[0][values.checkpoints[-1]][name], list)
        for values in measured.values()
        for name in values.final_names()
    }


def plot_measure(path: Path, measure: Measure, measured: Mapping[str, Values]) -> bool:
    """Plot values by layer after the last update, or else numbers by checkpoint; return whether there is anything."""
    by_layer = value_names(measured)
    has_layers, lines = any(by_layer.values()), {}
    for name in (name for name in by_layer if by_layer[name] == has_layers):
        of_model = lines.setdefault(name, {})
        for model, values in ((model, values.other(name)) for model, values in measured.items()):
            if name in values.final_names():
                y = values.final() if has_layers else np.stack([values.at(one) for one in values.checkpoints], axis=1)
                of_model[model] = Lines(np.arange(y.shape[1]) if has_layers else np.array(values.checkpoints), y)
    return measure.options.figure(path, measure.name, LAYER if has_layers else "updates", lines)


def plot_contrasts(path: Path, tested: Sequence[Outcome]) -> None:
    """Plot every contrast on an axis of its own: seeds as dots, the mean with its 95 % interval, and zero."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 0.9 * len(tested)), layout="constrained")
    for axes, one in zip(figure.subplots(len(tested), 1, squeeze=False)[:, 0], tested, strict=True):
        (low, high), colour = one.interval, COLOURS[0] if one.contrast.primary else "grey"
        axes.axvline(0, color="black", linewidth=0.8)
        for margin in (one.contrast.margin or 0.0, -(one.contrast.margin or 0.0)):
            axes.axvline(margin, color="black", linewidth=0.8, linestyle=":")
        axes.plot([low, high], [0, 0], color=colour, linewidth=2)
        axes.plot([one.mean], [0], "D", color=colour)
        axes.plot([*one.values.values()], [0.5] * len(one.values), "o", color=colour, alpha=0.5, markersize=4)
        less = f" less {one.contrast.less}" if one.contrast.less else ""
        axes.set_title(f"{one.contrast.name}: {one.contrast.of}, {one.contrast.model}{less}", fontsize=8, loc="left")
        axes.set(ylim=(-0.5, 1), yticks=[])
        axes.tick_params(labelsize=7)
    figure.suptitle("Contrasts: seeds (dots), mean and 95 % interval; primary ones in colour", fontsize=9)
    figure.savefig(path, dpi=120)
