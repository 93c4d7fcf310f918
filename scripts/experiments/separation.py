#!/usr/bin/env python3
"""Read the two plans of scripts/results/separation: the verdict at 2e-3, its figure, and all seeds at 1e-3.

    scripts/experiments/separation.py RESULTS [RESULTS_AT_1E-3] [--figure PNG]      (results.json of each plan)

At 1e-3, seed 1 of three of the models is that of the second evidence study.
"""

import argparse
import json
import sys
from collections.abc import Sequence
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
    EVIDENCE,
    HIGH,
    LOW,
    MAE,
    MLM,
    RESULTS,
    mean_interval,
    minus,
)
from experiments.front_page_figure import COLOURS
from mae_lm_fairseq.study.contrasts import interval

RESET = "MAE-LM, [MASK] states reset"
MARGIN = 0.3
"""Points of contextual gain within which the presence of [MASK] counts as harmless."""
PAGE = "scripts/results/separation/README.md"
MEASURES = {
    "contextual gain": lambda measures: _gain(measures["probe"][END]["ambiguous_accuracy"]),
    "ambiguous words, last layer": lambda measures: measures["probe"][END]["ambiguous_accuracy"][-1],
    "all words, last layer": lambda measures: measures["probe"][END]["accuracy"][-1],
    "ambiguous words, best layer": lambda measures: max(measures["probe"][END]["ambiguous_accuracy"]),
    "UPOS, two layers trained": lambda measures: measures["UPOS, last two layers trained"][END]["accuracy"],
    "UPOS, all layers trained": lambda measures: measures["UPOS, all layers trained"][END]["accuracy"],
    "loss (nats)": lambda measures: measures["loss"][END]["loss"],
    "exclusivity": lambda measures: 100 * np.mean(measures["exclusivity"][END]["exclusivity_0.9"][2:]),
    "directions of real tokens": lambda measures: measures["rank"][END]["real_clean"][-1],
}
"""Quantities to compare, by name, as functions of the measures of one training."""
GAIN = "contextual gain"
REPEATED = GAIN, "ambiguous words, last layer", "ambiguous words, best layer", "UPOS, two layers trained"
"""Measures of MAE-LM that are compared with those of the second evidence study."""
DIGITS = {"directions of real tokens": 0, "exclusivity": 1}
Runs = dict[str, dict[int, dict]]
"""Measures by model and seed."""


def _gain(by_layer: Sequence[float]) -> float:
    return by_layer[-1] - by_layer[0]


def verdict(differences: Sequence[float]) -> str:
    """Return the result of the rule, for reset less MAE-LM in the contextual gain, in points."""
    low, high = interval(differences, 0.9)
    if low > -MARGIN and high < MARGIN:
        return "harmless"
    low, high = interval(differences, 0.95)
    return "the paper's mechanism" if high < 0 else "contradicted" if low > 0 else "cannot tell"


def read(path: Path, rate: float | None = None) -> Runs:
    """Return the finished trainings of a study, at a learning rate if that is given."""
    found: Runs = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["runs"]:
        is_finished = END in row["measures"].get("probe", {})
        if is_finished and (rate is None or row["learning_rate"] == rate):
            found.setdefault(row["model"], {})[row["seed"]] = row["measures"]
    return found


def pairs(runs: Runs, first: str, second: str, measure: str) -> dict[int, float]:
    """Return the differences of a measure by seed, of the seeds that both models have."""
    found, value = {}, MEASURES[measure]
    for seed in sorted(runs.get(first, {}).keys() & runs.get(second, {}).keys()):
        try:
            found[seed] = value(runs[first][seed]) - value(runs[second][seed])
        except KeyError:  # not measured yet
            continue
    return found


def table(runs: Runs, contrasts: Sequence[tuple[str, str]]) -> str:
    """Return every contrast of every measure, with its seeds, in Markdown."""
    lines = ["| contrast | measure | mean [95 %] | seeds |", "| --- | --- | --- | --- |"]
    for first, second in contrasts:
        for measure in MEASURES:
            found = pairs(runs, first, second, measure)
            values = [*found.values()]
            mean = f"{np.mean(values):+.2f}" if values else "-"
            if len(values) > 1:
                mean += " [{:.2f}, {:.2f}]".format(*interval(values, 0.95))
            listed = " ".join(f"{seed}: {value:+.2f}" for seed, value in found.items())
            lines.append(f"| {first} less {second} | {measure} | {mean} | {listed} |")
    return "\n".join(lines)


def draw(axes: Axes, values: np.ndarray, colour: str, label: str) -> None:
    """Draw the mean over the seeds, and each seed; values [seeds, layers]."""
    x = np.arange(values.shape[1])
    for seed in values:
        axes.plot(x, seed, color=colour, alpha=0.3, linewidth=0.7)
    axes.plot(x, values.mean(0), color=colour, linewidth=2, marker="o", markersize=4, label=label)


def draw_pairs(axes: Axes, height: float, differences: Sequence[float], colour: str) -> None:
    """Draw the differences of pairs, and above them their mean and 95 % interval, on an axis that points downwards."""
    axes.plot(differences, [height] * len(differences), "o", color=colour, alpha=0.35, markersize=5)
    axes.plot(interval(differences, 0.95), [height - 0.25] * 2, color=colour, linewidth=3)
    axes.plot(np.mean(differences), height - 0.25, "D", color=colour, markersize=5)


def figure(runs: Runs) -> Figure:
    """Return the probe's accuracy by layer, and the difference of each pair in the measures in points."""
    found = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = found.subplots(1, 2)
    probe, _, name = AMBIGUOUS.partition(".")
    for model, label, colour in (
        (MAE, MAE, COLOURS[MAE]),
        (RESET, "[MASK] in the encoder, states reset", COLOURS[MLM]),
    ):
        draw(left, np.array([measures[probe][END][name] for measures in runs[model].values()]), colour, label)
    left.set(title="Part of speech of ambiguous words, read by a probe (2e-3)", ylabel="accuracy (%)")
    left.set(xlabel="layer (0: embeddings)", xticks=range(5))
    left.legend(frameon=False, fontsize=8)
    left.grid(alpha=0.25)
    shown = [measure for measure in MEASURES if "words" in measure or "UPOS" in measure or "gain" in measure]
    right.axvspan(-MARGIN, MARGIN, color="#DDDDDD")
    right.axvline(0, color="black", linewidth=0.8)
    for height, measure in enumerate(shown):
        draw_pairs(right, height, [*pairs(runs, RESET, MAE, measure).values()], COLOURS[MLM])
    right.invert_yaxis()
    right.set(title="Five pairs, with mean and 95 % interval", yticks=range(len(shown)), yticklabels=shown)
    right.set_xlabel("[MASK] in the encoder, states reset, less MAE-LM (points)")
    right.margins(y=0.12)
    return found


def values(runs: Runs, model: str, measure: str) -> np.ndarray:
    """Return a measure of a model by seed."""
    return np.array([MEASURES[measure](measures) for _, measures in sorted(runs[model].items())])


def best_by_development_words(by_seed: dict[int, dict]) -> np.ndarray:
    """Return, by seed, the accuracy on ambiguous words at the layer that is best on the development sentences."""
    accuracies = []
    for _, measures in sorted(by_seed.items()):
        probe = measures["probe"][END]
        chosen = int(np.argmax(probe["dev_accuracy"]))
        accuracies.append(probe["ambiguous_accuracy"][chosen])
    return np.array(accuracies)


def phrases() -> dict[str, list[str]]:
    """Return what two pages say of this study, made from the committed results."""
    runs = read(RESULTS / "separation" / "results.json")
    before = read(RESULTS / "evidence-2" / "results.json", HIGH)
    found = {measure: [*pairs(runs, RESET, MAE, measure).values()] for measure in MEASURES}
    again, old = ({measure: values(study, MAE, measure) for measure in REPEATED} for study in (runs, before))
    repetition = {measure: again[measure] - old[measure] for measure in REPEATED}
    last, _, two_layers = REPEATED[1:]
    best = {model: best_by_development_words(runs[model]) for model in (MAE, RESET)}
    return {
        EVIDENCE: [
            f"P2 is {mean_interval(again[GAIN] - values(before, ALL, GAIN), 2)}",
            f"P3 {mean_interval(again[last] - values(before, MLM, last), 2)}",
            f"less 80/10/10, MAE-LM has {mean_interval(again[last] - values(before, BERT, last), 2)}",
            f"less the MLM, {mean_interval(best[MAE] - best_by_development_words(before[MLM]), 2)}",
            f"{mean_interval(repetition[GAIN], 2, sign=False)} on average",
            *(mean_interval(found[measure], 2) for measure in (GAIN, two_layers)),
        ],
        PAGE: [
            minus("90 %: [{:.2f}, {:.2f}]".format(*interval(found[GAIN], 0.9))),
            *(mean_interval(of_measure, DIGITS.get(measure, 2)) for measure, of_measure in found.items()),
            f"reset is {mean_interval(best[RESET] - best[MAE], 2)} points from MAE-LM",
            f"mean {mean_interval(repetition[GAIN], 2)}",
            f"({mean_interval(repetition[two_layers], 2)})",
            *(
                f"by {mean_interval(values(before, ALL, measure) - values(runs, RESET, measure), 2, sign=False)}{after}"
                for measure, after in ((two_layers, " points in two-layer UPOS"), (GAIN, ", where reset"))
            ),
        ],
    }


def main() -> None:
    """Print the tables and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of the plan separation")
    parser.add_argument("low", type=Path, nargs="?", help="results.json of the plan separation-1e-3")
    parser.add_argument("--figure", type=Path, help="file for the figure")
    options = parser.parse_args()
    runs = read(options.results)
    primary = [*pairs(runs, RESET, MAE, "contextual gain").values()]
    print(table(runs, [(RESET, MAE)]))
    print(f"\nverdict, {len(primary)} of 5 seeds: {verdict(primary) if len(primary) == 5 else 'open'}")
    if options.figure:
        figure(runs).savefig(options.figure, dpi=150)
    if options.low:
        low, before = read(options.low), read(RESULTS / "evidence-2" / "results.json", LOW)
        joined = {model: before.get(model, {}) | low.get(model, {}) for model in (MLM, MAE, ALL, RESET)}
        print("\n" + table(joined, [(RESET, MAE), (ALL, MAE), (MAE, MLM), (ALL, MLM)]))


if __name__ == "__main__":
    main()
