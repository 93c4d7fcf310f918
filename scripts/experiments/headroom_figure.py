#!/usr/bin/env python3
"""Draw the scores of the study headroom, every seed of every model, and the differences that the rule tests.

Example:
    scripts/experiments/headroom_figure.py tasks.json main/results.json --out scores.png
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.headroom import (
    BASELINE,
    MARGIN,
    METRICS,
    RANDOM,
    Headroom,
    Results,
    at_chosen_rate,
    differences,
    read_tasks,
    task_of,
)
from mae_lm_fairseq.study.contrasts import interval
from mae_lm_fairseq.utils.command_line import Argument, Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import read_json

COLOURS = {"MLM": "#0072B2", "MAE-LM": "#D55E00", "3ML-self": "#009E73"}
RANDOM_COLOUR = "#777777"
UNITS = {
    "accuracy": "accuracy (%)",
    "f1": "F1 (%)",
    "matthews": "Matthews correlation (%)",
    "spearman": "Spearman correlation (%)",
}
SPREAD = 0.12
"""Half of the width over which the seeds of a model are drawn."""


@dataclass(frozen=True)
class FigureOptions(Options):
    """Options of this program.

    Attributes:
        files: what ``headroom.py tasks`` has written, and the results of the main study.
        out: file for the figure.
    """

    files: Annotated[tuple[Path, Path], Argument("FILE", positional=True)]
    out: OutputFile


def places(centre: int, number: int) -> list[float]:
    """Return where the seeds of a model are drawn, from left to right."""
    step = 2 * SPREAD / max(number - 1, 1)
    return [centre - SPREAD + seed * step for seed in range(number)]


def draw_scores(axes: Axes, results: Results, arms: Sequence[str], measure: str) -> None:
    """Draw the scores on a measure, a point for each seed, and those of random weights as a line."""
    random = [*at_chosen_rate(results, RANDOM, measure).values()]
    axes.axhspan(min(random), max(random), color=RANDOM_COLOUR, alpha=0.2, linewidth=0)
    axes.axhline(fmean(random), color=RANDOM_COLOUR, linestyle="--", label=RANDOM)
    for centre, arm in enumerate(arms):
        values = [*at_chosen_rate(results, arm, measure).values()]
        axes.plot(places(centre, len(values)), values, "o", color=COLOURS[arm], markersize=5, alpha=0.8)
        axes.hlines(fmean(values), centre - 0.3, centre + 0.3, color=COLOURS[arm], linewidth=2)
    axes.set_title(measure)
    axes.set_ylabel(UNITS[METRICS[task_of(measure)]])
    name_models(axes, arms)


def draw_differences(axes: Axes, results: Results, arms: Sequence[str], task: Headroom) -> None:
    """Draw the differences of pairs from the MLM as a fraction of the headroom, their means and 90 % intervals."""
    axes.axhspan(
        -100 * MARGIN, 100 * MARGIN, color=RANDOM_COLOUR, alpha=0.2, linewidth=0, label="margin of equivalence"
    )
    axes.axhline(0, color="black", linewidth=0.8)
    for centre, arm in enumerate(arms):
        fractions = differences(results, arm, [task], is_lowest=False)[task.measure]
        values = [100 * fraction for fraction in fractions]
        low, high = interval(values, 0.90)
        axes.plot(places(centre, len(values)), values, "o", color=COLOURS[arm], markersize=5, alpha=0.6)
        axes.vlines(centre + 0.25, low, high, color=COLOURS[arm], linewidth=2)
        axes.plot(centre + 0.25, fmean(values), "D", color=COLOURS[arm], markersize=6)
    name_models(axes, arms)


def name_models(axes: Axes, arms: Sequence[str]) -> None:
    """Write the names of the models below the points."""
    axes.set_xticks(range(len(arms)), arms)
    axes.set_xlim(-0.5, len(arms) - 0.5)
    axes.grid(axis="y", alpha=0.25)


def figure(results: Results, tasks: Sequence[Headroom]) -> Figure:
    """Return the figure."""
    drawn = Figure(figsize=(3.2 * len(tasks), 7), layout="constrained")
    upper, lower = drawn.subplots(2, len(tasks), squeeze=False)
    others = [arm for arm in COLOURS if arm != BASELINE]
    for column, task in enumerate(tasks):
        draw_scores(upper[column], results, list(COLOURS), task.measure)
        draw_differences(lower[column], results, others, task)
    lower[0].set_ylabel("less the MLM of the same seed\n(% of the headroom)")
    for axes in (upper[0], lower[0]):
        axes.legend(frameon=False, fontsize=9)
    return drawn


def main(options: FigureOptions) -> None:
    """Draw the figure."""
    tasks, results = (read_json(path) for path in options.files)
    figure(results, read_tasks(tasks)).savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(FigureOptions, sys.argv[1:], __doc__, "headroom_figure.py"))
