#!/usr/bin/env python3
"""Draw the scores of the study headroom, every seed of every model, and the differences that the rule tests.

Example:
    scripts/experiments/headroom_figure.py simulation.json verdicts.json main/results.json --out scores.png
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.headroom import ARMS, METRICS, RANDOM, Results, at_chosen_rate, merged, task_of
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
        files: what the steps ``simulation`` and ``rule`` have written, and then the results of the main study.
        out: file for the figure.
    """

    files: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]
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


def draw_differences(axes: Axes, verdicts: Mapping[str, Any], measure: str, margin: float | None) -> None:
    """Draw the differences of pairs from the MLM as a fraction of the headroom, their means and 90 % intervals."""
    if margin is not None:
        axes.axhspan(
            -100 * margin, 100 * margin, color=RANDOM_COLOUR, alpha=0.2, linewidth=0, label="margin of equivalence"
        )
    axes.axhline(0, color="black", linewidth=0.8)
    arms = [arm for arm in ARMS if arm in verdicts["arms"]]
    for centre, arm in enumerate(arms):
        of_arm = verdicts["arms"][arm]
        statistics = (of_arm["at_the_chosen_rates"] | of_arm["outside_the_rule"])[measure]
        values = [100 * fraction for fraction in statistics["differences"]]
        low, high = statistics["interval_90"]
        axes.plot(places(centre, len(values)), values, "o", color=COLOURS[arm], markersize=5, alpha=0.6)
        axes.vlines(centre + 0.25, 100 * low, 100 * high, color=COLOURS[arm], linewidth=2)
        axes.plot(centre + 0.25, fmean(values), "D", color=COLOURS[arm], markersize=6)
    name_models(axes, arms)


def name_models(axes: Axes, arms: Sequence[str]) -> None:
    """Write the names of the models below the points."""
    axes.set_xticks(range(len(arms)), arms)
    axes.set_xlim(-0.5, len(arms) - 0.5)
    axes.grid(axis="y", alpha=0.25)


def figure(results: Results, verdicts: Mapping[str, Any], margin: float | None) -> Figure:
    """Return the figure, with a column for each measure, those of the rule first; others have no margin."""
    in_rule = verdicts["measures"]
    measures = [*in_rule, *(measure for measure in verdicts["headrooms"] if measure not in in_rule)]
    drawn = Figure(figsize=(3.2 * len(measures), 7), layout="constrained")
    upper, lower = drawn.subplots(2, len(measures), squeeze=False)
    for column, measure in enumerate(measures):
        draw_scores(upper[column], results, ARMS, measure)
        draw_differences(lower[column], verdicts, measure, margin if measure in in_rule else None)
        if measure not in in_rule:
            upper[column].set_title(f"{measure}\n(outside the rule)")
    lower[0].set_ylabel("less the MLM of the same seed\n(% of the headroom)")
    upper[0].legend(frameon=False, fontsize=9)
    if margin is not None:
        lower[0].legend(frameon=False, fontsize=9, loc="upper right")
    return drawn


def main(options: FigureOptions) -> None:
    """Draw the figure."""
    simulation, verdicts, *parts = (read_json(path) for path in options.files)
    chosen = simulation["chosen"]
    margin = chosen["margin"] if chosen else None
    figure(merged(parts), verdicts, margin).savefig(options.out, dpi=130)
    print(options.out)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(FigureOptions, sys.argv[1:], __doc__, "headroom_figure.py"))
