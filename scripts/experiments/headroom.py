#!/usr/bin/env python3
"""Choose the tasks of the study headroom, simulate its rule, and apply the rule to its results.

tasks: which candidates leave most room between random weights and pretrained models, from the results of stage T.
simulation: how often the rule gives each verdict without an effect, from what ``tasks`` has written.
rule: the verdicts, from what ``tasks`` has written and the results of the main study.

Example:
    scripts/experiments/headroom.py tasks headroom/results.json --out tasks.json
    scripts/experiments/headroom.py simulation tasks.json --out simulation.json
    scripts/experiments/headroom.py rule tasks.json main/results.json --out verdicts.json
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this package need not be installed

from mae_lm_fairseq.study.contrasts import LEVEL, interval, t_test  # noqa: E402
from mae_lm_fairseq.utils.command_line import Argument, Options, OutputFile, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import read_json, write_json  # noqa: E402

RANDOM = "random weights"
BASELINE = "MLM"
METRICS = {
    "CoLA": "matthews",
    "SST-2": "accuracy",
    "STS-B": "spearman",
    "RTE": "accuracy",
    "UPOS": "accuracy",
    "WNUT-17": "f1",
}
"""The metric that counts, by task; a measure is named by its task, or by that and its number of training rows."""
TEST_ROWS = {"CoLA": 1043, "SST-2": 872, "STS-B": 1500, "RTE": 277, "UPOS": 2001, "WNUT-17": 1009}
"""Rows or sentences of the sets that score."""
CHOSEN = 4
"""Number of measures that the main study keeps."""
MOST_SIZES = 2
"""Maximum number of sizes of one task among them."""
MARGIN = 0.1
"""Margin of equivalence and of non-inferiority, as a fraction of the headroom."""
SEEDS = 5
SIMULATED = 10_000

Results = Mapping[str, Any]
Differences = Mapping[str, Sequence[float]]
"""Differences of paired seeds as fractions of the headroom, by measure."""


@dataclass(frozen=True)
class Headroom:
    """Room of a measure between random weights and pretrained models, in points.

    Attributes:
        measure: its name in the plan.
        random: mean score of random weights.
        pretrained: mean score of the arms.
        deviation: standard deviation of a score: of the seeds of random weights, and of the sampling of the test rows.
    """

    measure: str
    random: float
    pretrained: float
    deviation: float

    @property
    def points(self) -> float:
        return self.pretrained - self.random

    @property
    def deviations(self) -> float:
        return self.points / self.deviation


def task_of(measure: str) -> str:
    """Return the task of a measure, which may be followed by its number of rows: ``UPOS, 500``."""
    return measure.partition(",")[0]


def scores(results: Results, model: str, measure: str, rate: str, split: str) -> dict[int, float]:
    """Return the scores of a model at a learning rate of fine-tuning, in per cent, by the seed of its pretraining.

    Args:
        split: ``test`` for the set that scores, ``dev`` for the held-out rows that choose the rate.

    Raises:
        UserError: if two runs have one seed, as at two learning rates of pretraining.
    """
    prefix = "test_" if split == "test" else ""
    name = f"{prefix}{METRICS[task_of(measure)]} at {rate}"
    runs = [run for run in results["runs"] if run["model"] == model]
    runs.sort(key=lambda run: run["seed"])
    by_seed = {}
    for run in runs:
        of_updates = run["measures"][measure]
        by_seed[run["seed"]] = of_updates[max(of_updates, key=int)][name]
    if len(by_seed) < len(runs):
        raise UserError(f"{model} has several runs of one seed")
    return by_seed


def rates_of(results: Results, measure: str) -> list[str]:
    """Return the learning rates of fine-tuning at which a measure was taken, ascending."""
    of_updates = results["runs"][0]["measures"][measure]
    names = of_updates[max(of_updates, key=int)]
    return sorted({name.partition(" at ")[2] for name in names if " at " in name}, key=float)


def chosen_rate(results: Results, model: str, measure: str) -> str:
    """Return the learning rate of fine-tuning with the highest mean score on held-out rows; the lowest of a tie."""
    rates = rates_of(results, measure)
    means = []
    for rate in rates:
        mean = fmean(scores(results, model, measure, rate, "dev").values())
        means.append(round(mean, 9))  # equal sums in another order are equal
    return rates[int(np.argmax(means))]


def at_chosen_rate(results: Results, model: str, measure: str) -> dict[int, float]:
    """Return the scores of a model by seed on the set that scores, at the rate that held-out rows choose."""
    return scores(results, model, measure, chosen_rate(results, model, measure), "test")


def sampling_deviation(task: str, score: float) -> float:
    """Return the standard deviation, in points, that a score has by the sampling of its test rows.

    It is binomial for accuracy and F1. That of a correlation r of n rows is about (1 - r^2) / sqrt(n).
    """
    fraction, rows = score / 100, TEST_ROWS[task]
    if METRICS[task] in ("matthews", "spearman"):
        return 100 * (1 - fraction**2) / rows**0.5
    return 100 * (fraction * (1 - fraction) / rows) ** 0.5


def headroom_of(results: Results, measure: str) -> Headroom:
    """Return the headroom of a measure, from the arms and random weights of stage T."""
    arms = sorted({run["model"] for run in results["runs"]} - {RANDOM})
    pretrained = fmean(fmean(at_chosen_rate(results, arm, measure).values()) for arm in arms)
    of_random = [*at_chosen_rate(results, RANDOM, measure).values()]
    sampling = sampling_deviation(task_of(measure), pretrained)
    deviation = (stdev(of_random) ** 2 + sampling**2) ** 0.5
    return Headroom(measure, fmean(of_random), pretrained, deviation)


def choose(candidates: Sequence[Headroom]) -> list[Headroom]:
    """Return the measures with the largest headrooms in standard deviations, at most two sizes of one task."""
    ranked = sorted(candidates, key=lambda headroom: headroom.deviations, reverse=True)
    chosen: list[Headroom] = []
    for headroom in ranked:
        sizes = [other for other in chosen if task_of(other.measure) == task_of(headroom.measure)]
        if len(sizes) < MOST_SIZES and len(chosen) < CHOSEN:
            chosen.append(headroom)
    return chosen


def p_values_of(differences: Differences) -> dict[str, float]:
    """Return the p-value of each measure by Student's two-sided t test, after Holm's correction over the measures."""
    p_values = {measure: t_test(np.array(values), "two-sided") for measure, values in differences.items()}
    corrected = {}
    largest = 0.0
    for rank, measure in enumerate(sorted(p_values, key=p_values.__getitem__)):
        holm = (len(p_values) - rank) * p_values[measure]
        largest = max(largest, min(1.0, holm))
        corrected[measure] = largest
    return corrected


def significant_signs(differences: Differences) -> set[int]:
    """Return the signs, 1 and -1, of the means that differ from 0."""
    signs = set()
    for measure, p_value in p_values_of(differences).items():
        if p_value < LEVEL:
            signs.add(1 if fmean(differences[measure]) > 0 else -1)
    return signs


def are_equivalent(differences: Differences) -> bool:
    """Return whether every 90 % interval lies within the margin."""
    intervals = [interval(values, 0.90) for values in differences.values()]
    return all(low > -MARGIN and high < MARGIN for low, high in intervals)


def verdict(best: Differences, lowest: Differences) -> str:
    """Return the verdict of the rule.

    Args:
        best: differences at the chosen rates of fine-tuning.
        lowest: differences at the lowest rate.
    """
    signs = significant_signs(best)
    if signs:
        return {(1,): "supported", (-1,): "contradicted"}.get(tuple(signs), "mixed")
    if not are_equivalent(best):
        return "cannot tell"
    return "speed only" if significant_signs(lowest) == {1} else "equivalent"


def lower_bound(differences: Differences) -> float:
    """Return the lower 95 % bound of the mean difference over the measures, by seed."""
    means = np.mean([*differences.values()], axis=0)
    low, _ = interval(means.tolist(), 0.90)  # its lower end is a one-sided bound of 95 %
    return low


def is_not_inferior(best: Differences) -> bool:
    """Return whether the lower bound is above the margin."""
    return lower_bound(best) > -MARGIN


def simulate(tasks: Sequence[Headroom], effect: float, generator: np.random.Generator) -> dict[str, float]:
    """Return how often the rule gives each verdict, and how often it calls an arm not inferior.

    Args:
        effect: true difference, as a fraction of the headroom, in all measures and at all rates.
    """
    deviations = [2**0.5 / headroom.deviations for headroom in tasks]  # of a difference of two scores
    counts: Counter[str] = Counter()
    for _ in range(SIMULATED):
        best, lowest = (
            {
                headroom.measure: generator.normal(effect, deviation, SEEDS)
                for headroom, deviation in zip(tasks, deviations, strict=True)
            }
            for _ in range(2)
        )
        counts[verdict(best, lowest)] += 1
        counts["not inferior"] += is_not_inferior(best)
    return {name: count / SIMULATED for name, count in counts.items()}


def differences(results: Results, arm: str, tasks: Sequence[Headroom], is_lowest: bool) -> dict[str, list[float]]:
    """Return an arm less the MLM, seed by seed, as fractions of the headrooms.

    Args:
        is_lowest: whether both are fine-tuned at the lowest rate, not at those that held-out rows choose.

    Raises:
        UserError: if the two have other seeds.
    """
    by_measure = {}
    for headroom in tasks:
        measure = headroom.measure
        if is_lowest:
            rate = rates_of(results, measure)[0]
            ours, theirs = (scores(results, model, measure, rate, "test") for model in (arm, BASELINE))
        else:
            ours, theirs = (at_chosen_rate(results, model, measure) for model in (arm, BASELINE))
        if ours.keys() != theirs.keys():
            raise UserError(f"{arm} has the seeds {[*ours]}, and {BASELINE} {[*theirs]}; complete the study")
        by_measure[measure] = [(ours[seed] - theirs[seed]) / headroom.points for seed in ours]
    return by_measure


@dataclass(frozen=True)
class HeadroomOptions(Options):
    """Options of this program.

    Attributes:
        step: tasks, simulation or rule.
        files: what the step reads.
        out: file for the result.
    """

    step: Annotated[Literal["tasks", "simulation", "rule"], Argument("STEP", positional=True)]
    files: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]
    out: OutputFile


def main(options: HeadroomOptions) -> None:
    """Run a step, and write its result."""
    contents = [read_json(path) for path in options.files]
    if len(contents) != (2 if options.step == "rule" else 1):
        raise UserError(f"{options.step}: {len(contents)} files are too few or too many; see --help")
    if options.step == "tasks":
        candidates = [headroom_of(contents[0], measure) for measure in measures_of(contents[0])]
        chosen = [headroom.measure for headroom in choose(candidates)]
        written = {
            "candidates": [asdict(headroom) | {"deviations": headroom.deviations} for headroom in candidates],
            "chosen": chosen,
        }
    else:
        tasks = read_tasks(contents[0])
        if options.step == "simulation":
            effects = (0.0, MARGIN / 2, MARGIN, 2 * MARGIN)
            written = {f"{effect:g}": simulate(tasks, effect, np.random.default_rng(1)) for effect in effects}
        else:
            written = apply_rule(contents[1], tasks)
    write_json(options.out, written)
    print(options.out.read_text(encoding="utf-8"))


def measures_of(results: Results) -> list[str]:
    """Return the names of the measures that fine-tune, in the order of the plan."""
    return [name for name in results["runs"][0]["measures"] if task_of(name) in METRICS]


def read_tasks(content: Mapping[str, Any]) -> list[Headroom]:
    """Return the chosen measures, given what the step ``tasks`` has written."""
    fields = ("measure", "random", "pretrained", "deviation")
    candidates = {one["measure"]: Headroom(*(one[name] for name in fields)) for one in content["candidates"]}
    return [candidates[measure] for measure in content["chosen"]]


def apply_rule(results: Results, tasks: Sequence[Headroom]) -> dict[str, Any]:
    """Return the verdict on each arm against the MLM, with what it is made of."""
    arms = sorted({run["model"] for run in results["runs"]} - {RANDOM, BASELINE})
    written = {}
    for arm in arms:
        best = differences(results, arm, tasks, is_lowest=False)
        lowest = differences(results, arm, tasks, is_lowest=True)
        written[arm] = {
            "verdict": verdict(best, lowest),
            "not_inferior": is_not_inferior(best),
            "lower_bound": lower_bound(best),
            "at_the_chosen_rates": statistics_of(best),
            "at_the_lowest_rate": statistics_of(lowest),
        }
    return written


def statistics_of(differences: Differences) -> dict[str, dict[str, Any]]:
    """Return what the rule reads of the differences, by measure."""
    p_values = p_values_of(differences)
    return {
        measure: {
            "differences": values,
            "mean": fmean(values),
            "interval_90": interval(values, 0.90),
            "p_holm": p_values[measure],
        }
        for measure, values in differences.items()
    }


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(HeadroomOptions, sys.argv[1:], __doc__, "headroom.py"))
