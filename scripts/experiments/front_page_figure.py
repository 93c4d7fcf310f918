#!/usr/bin/env python3
"""Draw README.md's figure of the second evidence study from its committed results.json."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.findings import ALL, BERT, END, HIGH, LOW, MAE, MLM, RANDOM, RESULTS, SEEDS, layers, study
from mae_lm_fairseq.study.contrasts import interval

COLOURS = {MLM: "#0072B2", BERT: "#E69F00", RANDOM: "#666666", MAE: "#D55E00", ALL: "#009E73"}
NAMES = {
    MLM: "MLM",
    RANDOM: "MLM, random tokens instead of [MASK]",
    MAE: "MAE-LM",
    ALL: "MAE-LM, all [MASK]s in its encoder",
}


def draw(axes: Axes, values: np.ndarray, colour: str, label: str, style: str = "-") -> None:
    """Draw the mean over the seeds, and each seed; values [seeds, layers]."""
    x = np.arange(values.shape[1])
    for seed in values if len(values) > 1 else ():
        axes.plot(x, seed, color=colour, alpha=0.3, linewidth=0.7, linestyle=style)
    axes.plot(x, values.mean(0), color=colour, linewidth=2, marker="o", markersize=4, linestyle=style, label=label)


def draw_pairs(axes: Axes, height: float, differences: Sequence[float], colour: str) -> None:
    """Draw the differences of pairs, and above them their mean and 95 % interval, on an axis that points downwards."""
    axes.plot(differences, [height] * len(differences), "o", color=colour, alpha=0.35, markersize=5)
    axes.plot(interval(differences, 0.95), [height - 0.25] * 2, color=colour, linewidth=3)
    axes.plot(np.mean(differences), height - 0.25, "D", color=colour, markersize=5)


def figure() -> Figure:
    """Return the figure."""
    found = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = found.subplots(1, 2)
    name = "exclusivity.exclusivity_0.9"
    draw(left, layers(MLM, name), COLOURS[MLM], "[MASK] in the MLM, learning rate 2e-3")
    draw(left, layers(MLM, name, LOW), COLOURS[MLM], "the same at 1e-3, one seed", "--")
    draw(left, layers(BERT, name), COLOURS[BERT], "[MASK] in the MLM with 80/10/10, 2e-3")
    words = layers(MLM, "exclusivity.types_highest")
    draw(left, words, "#CC79A7", "the farthest of 20 frequent words in the first MLM, 2e-3")
    draw(left, layers(RANDOM, name), COLOURS[RANDOM], "[MASK] in an MLM that never saw it, 2e-3")
    left.axhline(0, color="black", linewidth=0.8)
    left.set(
        title="How far [MASK] lies outside the directions of real tokens",
        ylabel="energy outside, above real tokens' (points)",
    )
    for model in (MLM, MAE, ALL):
        draw(right, layers(model, "probe.ambiguous_accuracy"), COLOURS[model], NAMES[model])
    lookup = study("evidence-2")[MLM, HIGH, SEEDS[0]]["probe"][END]["ambiguous_lookup"]
    right.axhline(lookup, color="black", linestyle=":", label="lookup: each word's most frequent part of speech")
    right.set(title="Part of speech of ambiguous words, read by a probe (2e-3)", ylabel="accuracy (%)")
    for axes in (left, right):
        axes.set(xlabel="layer (0: embeddings)", xticks=range(5))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, handlelength=3.5)  # dashes are seen
    return found


if __name__ == "__main__":
    path = Path(RESULTS, "evidence-2", "front-page.png")
    figure().savefig(path, dpi=130)
    print(path.name)
