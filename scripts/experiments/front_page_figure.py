#!/usr/bin/env python3
"""Draw the figure of the method on README.md and docs/findings.md from the committed results of the second study."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.findings import (
    ALL,
    AMBIGUOUS,
    BERT,
    END,
    EXCLUSIVITY,
    HIGH,
    LOW,
    MAE,
    MLM,
    RESULTS,
    SEEDS,
    layers,
    study,
)

OUT = RESULTS / "evidence-2" / "front-page.png"
COLOURS = {MLM: "#0072B2", BERT: "#E69F00", MAE: "#D55E00", ALL: "#009E73"}
WORDS_COLOUR = "#777777"


def draw(axes: Axes, values: np.ndarray, colour: str, label: str, style: str = "-") -> None:
    """Draw the mean over the seeds, and a band from the lowest to the highest seed; values [seeds, layers]."""
    x = np.arange(values.shape[1])
    axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(x, values.mean(0), color=colour, linewidth=2, marker="o", markersize=4, linestyle=style, label=label)


def draw_place_of_mask(axes: Axes) -> None:
    """Draw how far [MASK] lies outside the main directions of real tokens, by layer."""
    draw(axes, layers(MLM, EXCLUSIVITY), COLOURS[MLM], "[MASK], higher learning rate")
    draw(axes, layers(MLM, EXCLUSIVITY, LOW), COLOURS[MLM], "[MASK], lower rate (one seed)", "--")
    draw(axes, layers(BERT, EXCLUSIVITY), COLOURS[BERT], "[MASK] with BERT's mix")
    draw(axes, layers(MLM, "exclusivity.types_highest"), WORDS_COLOUR, "the farthest frequent word")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_title("Where [MASK] lies in an MLM")
    axes.set_ylabel("energy outside the main directions,\ncompared with real tokens (points)")


def draw_probe(axes: Axes) -> None:
    """Draw the accuracy of the probe on ambiguous words, by layer."""
    draw(axes, layers(MLM, AMBIGUOUS), COLOURS[MLM], "MLM")
    draw(axes, layers(MAE, AMBIGUOUS), COLOURS[MAE], "MAE-LM")
    draw(axes, layers(ALL, AMBIGUOUS), COLOURS[ALL], "MAE-LM that sees every [MASK]")
    lookup = study("evidence-2")[MLM, HIGH, SEEDS[0]]["probe"][END]["ambiguous_lookup"]
    axes.axhline(lookup, color="black", linestyle=":", label="most frequent part of speech")
    axes.set_title("What a probe reads about ambiguous words")
    axes.set_ylabel("accuracy in per cent")


def figure() -> Figure:
    """Return the figure."""
    drawn = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = drawn.subplots(1, 2)
    draw_place_of_mask(left)
    draw_probe(right)
    for axes in (left, right):
        axes.set(xlabel="layer, where layer 0 is the embeddings", xticks=range(5))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9, handlelength=3.5)  # dashes are seen
    return drawn


if __name__ == "__main__":
    figure().savefig(OUT, dpi=130)
    print(OUT.name)
