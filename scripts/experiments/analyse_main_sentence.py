#!/usr/bin/env python3
"""Compute the tests of scripts/results/main-sentence from main-sentence.json of one slot or of both.

Example:
    scripts/experiments/analyse_main_sentence.py slot-1/main-sentence.json slot-2/main-sentence.json \\
        --out report.json --figure differences.png
"""

import math
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # neither this package nor scripts/ need be installed

from experiments.one_model import FINE_TUNING_RATES, PRIMARY_TASKS, fine_tunings  # noqa: E402
from mae_lm_fairseq.study.contrasts import flip, interval, t_test  # noqa: E402
from mae_lm_fairseq.utils.command_line import Argument, Options, OutputFile, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import read_json, write_json  # noqa: E402

ARMS, BASELINE = ("MAE-LM", "reset"), "MLM"
GATE, GATED = {"SST-2": 0.0, "CoLA": 8.0, "STS-B": 35.0}, 2
"""Smallest mean of the first MLMs with which a task stays in the primary, and the number of these MLMs."""
MARGIN = 1.0
"""Points within which the composites are equivalent."""
SHOWN = {
    "SST-2": "SST-2 (primary), accuracy",
    "CoLA": "CoLA, Matthews' correlation",
    "STS-B": "STS-B, Spearman's correlation",
    "all three": "mean of these three",
    "RTE": "RTE, accuracy",
    "UPOS": "UPOS, accuracy",
    "probe, last layer": "probe for UPOS, last layer",
    "probe, best layer": "probe for UPOS, best layer",
}
"""Contrasts of the figure, with their labels."""

Rows = dict[tuple[str, int], dict[str, dict[str, Any]]]
"""Rows by model (arm and seed), and then by name."""


@dataclass(frozen=True)
class AnalysisOptions(Options):
    """Options of the analysis.

    Attributes:
        slots: main-sentence.json of slot 1, and of slot 2 if it has run.
        out: file for the report (default: it is printed only).
        figure: PNG of the differences of MAE-LM, by pair.
    """

    slots: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]
    out: OutputFile | None = None
    figure: OutputFile | None = None


def read_rows(paths: Sequence[Path]) -> Rows:
    """Return the rows of all models, without models whose loss is not finite.

    Raises:
        UserError: if the slots differ in updates, rates, data or size, or have a model in common.
    """
    records = [read_json(path) for path in paths]
    described = [{**record["settings"], "slot": None, "updates": record["updates"]} for record in records]
    if any(one != described[0] for one in described):
        raise UserError(f"the slots cannot be analysed together: {described}")
    found: Rows = {}
    for record in records:
        own: Rows = {}
        for row in record["rows"]:
            own.setdefault((row["arm"], row["seed"]), {})[row["name"]] = row
        if both := found.keys() & own.keys():
            raise UserError(f"models in two slots: {sorted(both)}")
        found |= own
    return {model: rows for model, rows in found.items() if math.isfinite(rows.get("pretraining", {}).get("loss", 0.0))}


def score(rows: dict[str, dict[str, Any]], task: str, rates: Sequence[float] = FINE_TUNING_RATES) -> float:
    """Return the mean of a task over learning rates and seeds of fine-tuning; NaN if one is missing."""
    return fmean(rows.get(name, {}).get("value", math.nan) for name in fine_tunings(task, rates=rates))


def kept_tasks(rows: Rows) -> dict[str, float]:
    """Return the tasks of the primary that pass the gate, with the mean of the first MLMs that are complete."""
    mlms = [of_model for (arm, _), of_model in sorted(rows.items()) if arm == BASELINE]
    complete = [of_model for of_model in mlms if of_model.keys() >= {*fine_tunings(*PRIMARY_TASKS)}][:GATED]
    means = {task: fmean(score(of_model, task) for of_model in complete) for task in PRIMARY_TASKS} if complete else {}
    return {task: mean for task, mean in means.items() if mean >= GATE[task]}


def contrast(rows: Rows, arm: str, value: Callable[[dict[str, dict[str, Any]]], float]) -> dict[str, Any]:
    """Return an arm less the MLM, paired over the seeds that have the value in both."""
    seeds = sorted(seed for name, seed in rows if name == arm and (BASELINE, seed) in rows)
    differences = {seed: value(rows[arm, seed]) - value(rows[BASELINE, seed]) for seed in seeds}
    by_seed = {seed: difference for seed, difference in differences.items() if math.isfinite(difference)}
    found: dict[str, Any] = {"pairs": len(by_seed), "by_seed": by_seed}
    if len(by_seed) < 2:
        return found
    values = np.array([*by_seed.values()])
    return found | {
        "mean": fmean(values),
        "deviation": stdev(values),
        "interval_95": interval(values, 0.95),
        "interval_90": interval(values, 0.90),
        "p": t_test(values, "two-sided"),
        "sign_flip": flip(values, "two-sided"),
    }


def verdict(tested: dict[str, Any]) -> str:
    """Return the verdict on the primary: shown, contradicted, equivalent or cannot tell, in this order."""
    if tested["pairs"] < 2:
        return "cannot tell"
    (low, high), (lower, upper) = tested["interval_95"], tested["interval_90"]
    if low > 0 or high < 0:
        return "shown" if low > 0 else "contradicted"
    return "equivalent" if lower > -MARGIN and upper < MARGIN else "cannot tell"


def analyse(rows: Rows) -> dict[str, Any]:
    """Return the primary test and the secondary contrasts."""
    kept = kept_tasks(rows)

    def composite(of_model: dict[str, dict[str, Any]]) -> float:
        return fmean(score(of_model, task) for task in kept) if kept else math.nan

    def measured(name: str, key: str) -> Callable[[dict[str, dict[str, Any]]], float]:
        return lambda of_model: of_model.get(name, {}).get(key, math.nan)

    secondary = {task: partial(score, task=task) for task in (*PRIMARY_TASKS, "RTE", "UPOS")}
    secondary |= {
        "all three": lambda of_model: fmean(score(of_model, task) for task in PRIMARY_TASKS),
        **{
            f"{task}, {rate:g}": partial(score, task=task, rates=[rate])
            for task in (*PRIMARY_TASKS, "UPOS")
            for rate in FINE_TUNING_RATES
        },
        "probe, best layer": measured("probe", "best"),
        "probe, last layer": measured("probe", "last"),
        "exclusivity, layers above the first": _exclusivity,
        "pretraining loss": measured("pretraining", "loss"),
        "score per second of GPU": lambda of_model: composite(of_model) / measured("pretraining", "seconds")(of_model),
    }
    primary = contrast(rows, "MAE-LM", composite)
    return {
        "kept_tasks": kept,
        "primary": {**primary, "verdict": verdict(primary)},
        "secondary": {
            arm: {name: contrast(rows, arm, value) for name, value in {"composite": composite, **secondary}.items()}
            for arm in ARMS
        },
    }


def means(rows: Rows, arm: str) -> dict[str, float]:
    """Return the mean scores of an arm by task, and the mean of its pretraining losses."""
    of_arm = [of_model for (name, _), of_model in rows.items() if name == arm]
    found = {task: fmean(score(of_model, task) for of_model in of_arm) for task in (*PRIMARY_TASKS, "RTE", "UPOS")}
    return found | {"pretraining loss": fmean(of_model["pretraining"]["loss"] for of_model in of_arm)}


def figure(contrasts: dict[str, dict[str, Any]], kept: Container[str]) -> "Figure":
    """Return a figure of the differences: every pair, the mean and its 95 % interval."""
    from matplotlib.figure import Figure

    from experiments.separation import draw_pairs

    found = Figure(figsize=(8, 3.8), layout="constrained")
    axes = found.subplots()
    for height, name in enumerate(SHOWN):
        tested, colour = contrasts[name], "#D55E00" if name in kept else "#666666"
        draw_pairs(axes, height, [*tested["by_seed"].values()], colour)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(yticks=range(len(SHOWN)), yticklabels=SHOWN.values(), xlabel="points; to the right: MAE-LM is better")
    axes.set_title("MAE-LM less the MLM: twelve pairs, mean, 95 % interval")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    return found


def _exclusivity(of_model: dict[str, dict[str, Any]]) -> float:
    layers = of_model.get("exclusivity", {}).get("layers", [])[2:]
    return 100 * fmean(layer["exclusivity_0.9"] for layer in layers) if layers else math.nan


def main(options: AnalysisOptions) -> None:
    """Print the report, and write it."""
    found = analyse(rows := read_rows(options.slots))
    found["means"] = {arm: means(rows, arm) for arm in (BASELINE, ARMS[0])}
    print(f"tasks: {', '.join(f'{task} ({mean:.1f})' for task, mean in found['kept_tasks'].items())}")
    print(f"primary: {found['primary']['verdict']}, {_cell(found['primary'])}")
    for arm, contrasts in found["secondary"].items():
        for name, tested in contrasts.items():
            print(f"  {arm} less {BASELINE}, {name}: {_cell(tested)}")
    if options.out:
        write_json(options.out, {"slots": [path.name for path in options.slots], **found})
    if options.figure:
        figure(found["secondary"]["MAE-LM"], found["kept_tasks"]).savefig(options.figure, dpi=130)


def _cell(tested: dict[str, Any]) -> str:
    if tested["pairs"] < 2:
        return f"{tested['pairs']} pairs"
    low, high = tested["interval_95"]
    test = f"p {tested['p']:.3g}, sign flip {tested['sign_flip']:.3g}, {tested['pairs']} pairs"
    return f"{tested['mean']:+.3f} [{low:+.3f}, {high:+.3f}], {test}"


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(AnalysisOptions, sys.argv[1:], __doc__, "analyse_main_sentence.py"))
