#!/usr/bin/env python3
"""Choose the tasks of the study headroom, simulate its rule, and apply the rule to its results.

tasks: which candidates leave most room between random weights and pretrained models, from the results of stage T.
edges: which models have their best learning rate of fine-tuning at an edge, by held-out rows alone.
simulation: with which tasks and margin the rule can find arms equivalent, and how often it gives each verdict.
rule: the verdicts, from what ``tasks`` and ``simulation`` have written and the results of the main study.

Results may be several files, of studies with other tasks or other seeds.

Example:
    scripts/experiments/headroom.py tasks stage-t/results.json --out tasks.json
    scripts/experiments/headroom.py edges stage-t/results.json --out edges.json
    scripts/experiments/headroom.py simulation tasks.json --out simulation.json
    scripts/experiments/headroom.py rule tasks.json simulation.json main/results.json --out verdicts.json
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
THREE_ML = "3ML-self"
ARMS = (BASELINE, "MAE-LM", THREE_ML)
METRICS = {
    "CoLA": "matthews",
    "SST-2": "accuracy",
    "STS-B": "spearman",
    "RTE": "accuracy",
    "UPOS": "accuracy",
    "DEPREL": "accuracy",
    "WNUT-17": "f1",
}
"""The metric that counts, by task; a measure is named by its task, or by that and its number of training rows."""
SCORED = {"CoLA": 1043, "SST-2": 872, "STS-B": 1500, "RTE": 277, "UPOS": 25_147, "DEPREL": 25_133, "WNUT-17": 836}
"""Rows, words (UPOS, DEPREL) or entities (WNUT-17) of the sets that score."""
ELIGIBLE = 5.0
"""Smallest headroom of a measure that is chosen, in standard deviations."""
CHOSEN = 4
"""Number of measures that the main study keeps."""
FEWEST = 2
"""Number of measures below which there is no verdict."""
MOST_SIZES = 2
"""Maximum number of sizes of one task among them."""
MARGINS = (0.1, 0.15, 0.2)
"""Margins of equivalence and of non-inferiority that are tried, as fractions of the headroom."""
LOWEST_RATE = "0.0001"
"""Learning rate of fine-tuning at which speed is compared."""
SEEDS = (1, 2, 3, 4, 5)
"""Seeds of pretraining of the main study."""
SEEDS_OF_RANDOM = (3, 4, 5, 6, 7)
"""Seeds of random weights of the main study."""
CORRELATIONS = (0.0, 0.5)
"""Correlations between the differences of two measures that are simulated."""
SIMULATED = 10_000
EQUIVALENT = ("equivalent", "speed only", "slower only")
"""Verdicts of arms whose differences lie within the margin."""
NOT_INFERIOR = "not inferior"
"""Name of the finding that stands beside a verdict: the lower bound of 3ML lies above minus the margin."""

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
        deviation: standard deviation of a score: of the seeds of random weights, and of the sampling of what is scored.
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


def merged(parts: Sequence[Results]) -> Results:
    """Return the results of studies with other tasks or other seeds as those of one."""
    return {"runs": [run for part in parts for run in part["runs"]]}


def runs_with(results: Results, measure: str) -> list[dict[str, Any]]:
    """Return the runs that have a measure."""
    return [run for run in results["runs"] if measure in run["measures"]]


def last_values(run: Mapping[str, Any], measure: str) -> dict[str, float]:
    """Return what a measure has found after the last update of a run."""
    of_updates = run["measures"][measure]
    return of_updates[max(of_updates, key=int)]


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
    runs = [run for run in runs_with(results, measure) if run["model"] == model]
    runs.sort(key=lambda run: run["seed"])
    by_seed = {}
    for run in runs:
        by_seed[run["seed"]] = last_values(run, measure)[name]
    if len(by_seed) < len(runs):
        raise UserError(f"{model} has several runs of one seed")
    return by_seed


def rates_of(results: Results, measure: str) -> list[str]:
    """Return the learning rates of fine-tuning at which a measure was taken, ascending.

    Raises:
        UserError: if runs have other rates than others.
    """
    rates_of_runs = set()
    for run in runs_with(results, measure):
        names = last_values(run, measure)
        rates_of_runs.add(frozenset(name.partition(" at ")[2] for name in names if " at " in name))
    if len(rates_of_runs) != 1:
        raise UserError(f"{measure}: the runs differ in learning rates of fine-tuning; complete the study")
    return sorted(rates_of_runs.pop(), key=float)


def chosen_rate(results: Results, model: str, measure: str) -> str:
    """Return the learning rate of fine-tuning with the highest mean score on held-out rows; the lowest of a tie."""
    return best_rates(results, model, measure)[0]


def best_rates(results: Results, model: str, measure: str) -> list[str]:
    """Return the learning rates of fine-tuning with the highest mean score on held-out rows, ascending."""
    means = {}
    for rate in rates_of(results, measure):
        mean = fmean(scores(results, model, measure, rate, "dev").values())
        means[rate] = round(mean, 9)  # equal sums in another order are equal
    highest = max(means.values())
    return [rate for rate, mean in means.items() if mean == highest]


def at_chosen_rate(results: Results, model: str, measure: str) -> dict[int, float]:
    """Return the scores of a model by seed on the set that scores, at the rate that held-out rows choose."""
    return scores(results, model, measure, chosen_rate(results, model, measure), "test")


def sampling_deviation(task: str, score: float) -> float:
    """Return the standard deviation, in points, that a score has by the sampling of its test rows.

    It is binomial for accuracy and F1. That of a correlation r of n rows is about (1 - r^2) / sqrt(n).
    """
    fraction, cases = score / 100, SCORED[task]
    if METRICS[task] in ("matthews", "spearman"):
        return 100 * (1 - fraction**2) / cases**0.5
    return 100 * (fraction * (1 - fraction) / cases) ** 0.5


def headroom_of(results: Results, measure: str) -> Headroom:
    """Return the headroom of a measure, from the arms and random weights of stage T."""
    arms = sorted({run["model"] for run in results["runs"]} - {RANDOM})
    pretrained = fmean(fmean(at_chosen_rate(results, arm, measure).values()) for arm in arms)
    of_random = [*at_chosen_rate(results, RANDOM, measure).values()]
    sampling = sampling_deviation(task_of(measure), pretrained)
    of_seeds = max(stdev(of_random), sampling / 2)  # three seeds may agree by chance
    deviation = (of_seeds**2 + sampling**2) ** 0.5
    return Headroom(measure, fmean(of_random), pretrained, deviation)


def choose(candidates: Sequence[Headroom]) -> list[Headroom]:
    """Return the eligible measures with the largest headrooms in deviations, at most two sizes of one task."""
    eligible = [headroom for headroom in candidates if headroom.deviations >= ELIGIBLE]
    ranked = sorted(eligible, key=lambda headroom: headroom.deviations, reverse=True)
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


def are_within(differences: Differences, margin: float) -> bool:
    """Return whether every 90 % interval lies within the margin."""
    intervals = [interval(values, 0.90) for values in differences.values()]
    return all(low > -margin and high < margin for low, high in intervals)


def verdict(best: Differences, lowest: Differences, margin: float | None) -> str:
    """Return the verdict of the rule.

    Args:
        best: differences at the chosen rates of fine-tuning.
        lowest: differences at the lowest rate.
        margin: margin of equivalence; None if arms cannot be found equivalent.
    """
    signs = significant_signs(best)
    if signs:
        return {(1,): "supported", (-1,): "contradicted"}.get(tuple(signs), "mixed")
    if margin is None or not are_within(best, margin):
        return "cannot tell"
    return {(1,): "speed only", (-1,): "slower only"}.get(tuple(significant_signs(lowest)), "equivalent")


def lower_bound(differences: Differences) -> float:
    """Return the lower 95 % bound of the mean difference over the measures, by seed."""
    means = np.mean([*differences.values()], axis=0)
    low, _ = interval(means.tolist(), 0.90)  # its lower end is a one-sided bound of 95 %
    return low


def simulate(
    tasks: Sequence[Headroom], margin: float, effect: float, correlation: float, generator: np.random.Generator
) -> dict[str, float]:
    """Return how often the rule gives each verdict, and how often it calls an arm not inferior.

    Args:
        effect: true difference, as a fraction of the headroom, in all measures and at all rates.
        correlation: correlation between the differences of two measures.
    """
    deviations = {task.measure: 2**0.5 / task.deviations for task in tasks}  # of a difference of two scores
    counts: Counter[str] = Counter()
    for _ in range(SIMULATED):
        best = draw(deviations, effect, correlation, generator)
        lowest = draw(deviations, effect, correlation, generator)
        counts[verdict(best, lowest, margin)] += 1
        counts[NOT_INFERIOR] += lower_bound(best) > -margin
    return {name: count / SIMULATED for name, count in counts.items()}


def draw(
    deviations: Mapping[str, float], effect: float, correlation: float, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return normal differences by measure, one for each seed."""
    common = generator.normal(size=len(SEEDS))
    differences = {}
    for measure, deviation in deviations.items():
        own = generator.normal(size=len(SEEDS))
        noise = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
        differences[measure] = effect + deviation * noise
    return differences


def find_setting(tasks: Sequence[Headroom]) -> dict[str, Any]:
    """Return the settings that were simulated, and the first in which arms without an effect are found equivalent.

    The margins are tried from the narrowest to the widest, each without the weakest measures one after the other. The
    frequencies without an effect must be enough at every correlation.
    """
    tried = []
    for margin in MARGINS:
        for number in range(len(tasks), FEWEST - 1, -1):
            kept = tasks[:number]
            without_effect = {}
            for correlation in CORRELATIONS:
                generator = np.random.default_rng(1)
                without_effect[f"{correlation:g}"] = simulate(kept, margin, 0.0, correlation, generator)
            setting = {"measures": [task.measure for task in kept], "margin": margin, "without_effect": without_effect}
            tried.append(setting)
            if all(is_enough(frequencies) for frequencies in without_effect.values()):
                return {"chosen": setting | {"with_effect": with_effects(kept, margin)}, "tried": tried}
    return {"chosen": None, "tried": tried}


def is_enough(frequencies: Mapping[str, float]) -> bool:
    """Return whether half of the arms without an effect are found equivalent, and half of them not inferior."""
    return frequency_of_equivalence(frequencies) >= 0.5 and frequencies.get(NOT_INFERIOR, 0.0) >= 0.5


def frequency_of_equivalence(frequencies: Mapping[str, float]) -> float:
    """Return how often an arm gets one of the verdicts of equivalence."""
    return sum(frequencies.get(name, 0.0) for name in EQUIVALENT)


def with_effects(tasks: Sequence[Headroom], margin: float) -> dict[str, dict[str, float]]:
    """Return the frequencies of independent measures with effects, by the effect as a fraction of the headroom."""
    frequencies = {}
    for effect in (margin / 2, margin, 2 * margin):
        frequencies[f"{effect:g}"] = simulate(tasks, margin, effect, 0.0, np.random.default_rng(1))
    return frequencies


def differences(results: Results, arm: str, measures: Sequence[str], is_lowest: bool) -> dict[str, list[float]]:
    """Return an arm less the MLM by measure, seed by seed, in points.

    Args:
        is_lowest: whether both are fine-tuned at the lowest rate, not at those that held-out rows choose.
    """
    by_measure = {}
    for measure in measures:
        if is_lowest:
            ours, theirs = (scores(results, model, measure, LOWEST_RATE, "test") for model in (arm, BASELINE))
        else:
            ours, theirs = (at_chosen_rate(results, model, measure) for model in (arm, BASELINE))
        by_measure[measure] = [ours[seed] - score for seed, score in theirs.items()]
    return by_measure


@dataclass(frozen=True)
class HeadroomOptions(Options):
    """Options of this program.

    Attributes:
        step: tasks, edges, simulation or rule.
        files: what the step reads.
        out: file for the result.
    """

    step: Annotated[Literal["tasks", "edges", "simulation", "rule"], Argument("STEP", positional=True)]
    files: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]
    out: OutputFile


FIRST_RESULTS = {"tasks": 0, "edges": 0, "simulation": 1, "rule": 2}
"""Number of files that come before the results, by step."""


def main(options: HeadroomOptions) -> None:
    """Run a step, and write its result."""
    first = FIRST_RESULTS[options.step]
    contents = [read_json(path) for path in options.files]
    before, parts = contents[:first], contents[first:]
    if len(before) < first or bool(parts) == (options.step == "simulation"):
        raise UserError(f"{options.step}: {len(contents)} files are too few or too many; see --help")
    written: Any
    if options.step == "tasks":
        written = find_tasks(merged(parts))
    elif options.step == "edges":
        written = edges(merged(parts))
    elif options.step == "simulation":
        written = find_setting(read_tasks(before[0]))
    else:
        tasks, simulation = before
        written = apply_rule(merged(parts), read_tasks(tasks), simulation["chosen"])
    write_json(options.out, written)
    print(options.out.read_text(encoding="utf-8"))


def find_tasks(results: Results) -> dict[str, Any]:
    """Return the candidates of stage T with their headrooms, and the names of the chosen ones."""
    candidates = [headroom_of(results, measure) for measure in measures_of(results)]
    return {
        "candidates": [asdict(headroom) | {"deviations": headroom.deviations} for headroom in candidates],
        "chosen": [headroom.measure for headroom in choose(candidates)],
    }


def edges(results: Results) -> list[dict[str, str]]:
    """Return the measures and models whose best rate is the lowest or the highest one, without their scores.

    A rate is not at an edge if one between the edges is as good, as for random weights that predict one class.
    """
    at_edges = []
    for measure in measures_of(results):
        rates = rates_of(results, measure)
        for model in dict.fromkeys(run["model"] for run in results["runs"]):
            best = best_rates(results, model, measure)
            if set(best) <= {rates[0], rates[-1]}:
                at_edges.append({"measure": measure, "model": model, "rate": best[0]})
    return at_edges


def measures_of(results: Results) -> list[str]:
    """Return the names of the measures that fine-tune, in the order of the plans."""
    names = dict.fromkeys(name for run in results["runs"] for name in run["measures"])
    return [name for name in names if task_of(name) in METRICS]


def read_tasks(content: Mapping[str, Any]) -> list[Headroom]:
    """Return the chosen measures, given what the step ``tasks`` has written."""
    fields = ("measure", "random", "pretrained", "deviation")
    candidates = {one["measure"]: Headroom(*(one[name] for name in fields)) for one in content["candidates"]}
    return [candidates[measure] for measure in content["chosen"]]


def apply_rule(results: Results, tasks: Sequence[Headroom], setting: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the verdict on each arm against the MLM, with what it is made of.

    The results may have measures that the rule does not use; their differences are described.

    Args:
        results: those of the main study.
        tasks: the chosen measures, with their headrooms in stage T.
        setting: measures and margin that the simulation has chosen; None if arms cannot be found equivalent.

    Raises:
        UserError: if the results lack a measure of the rule, or have other seeds than the main study.
    """
    check_complete(results)
    in_stage_t = {task.measure: task.points for task in tasks}
    in_rule = setting["measures"] if setting else [*in_stage_t]
    headrooms = {measure: headroom_of(results, measure).points for measure in measures_of(results)}
    for measure in in_rule:
        if measure not in headrooms:
            raise UserError(f"the results have no {measure}; complete the study")
    kept = [measure for measure in in_rule if headrooms[measure] >= in_stage_t[measure] / 2]
    outside = [measure for measure in headrooms if measure not in kept]
    written = {}
    for arm in ARMS[1:]:
        best = differences(results, arm, kept, is_lowest=False)
        lowest = differences(results, arm, kept, is_lowest=True)
        described = differences(results, arm, outside, is_lowest=False)
        written[arm] = arm_result(arm, best, lowest, headrooms, setting)
        written[arm]["outside_the_rule"] = statistics_of(described, headrooms)
    return {"headrooms": headrooms, "measures": kept, "arms": written}


def check_complete(results: Results) -> None:
    """Check that every model has the first seeds of the main study, as many as the MLM, in every measure.

    Otherwise a mean would be that of other models than the page says.

    Raises:
        UserError: if a model has other seeds.
    """
    number = len({run["seed"] for run in results["runs"] if run["model"] == BASELINE})
    for measure in measures_of(results):
        for model in (*ARMS, RANDOM):
            found = sorted(run["seed"] for run in runs_with(results, measure) if run["model"] == model)
            expected = [*(SEEDS_OF_RANDOM if model == RANDOM else SEEDS)[:number]]
            if found != expected:
                raise UserError(f"{measure}: {model} has the seeds {found}, not {expected}; complete the study")


def arm_result(
    arm: str, best: Differences, lowest: Differences, headrooms: Mapping[str, float], setting: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the verdict on an arm, given its differences in points."""
    margin = None
    if setting and all(len(values) == len(SEEDS) for values in best.values()):
        margin = setting["margin"]
    fractions = divided(best, headrooms)
    has_verdict = len(best) >= FEWEST
    arm_verdict = verdict(fractions, divided(lowest, headrooms), margin) if has_verdict else None
    result = {
        "verdict": arm_verdict,
        "is_within_margin": are_within(fractions, margin) if has_verdict and margin is not None else None,
        "at_the_chosen_rates": statistics_of(best, headrooms),
        "at_the_lowest_rate": statistics_of(lowest, headrooms),
    }
    if arm == THREE_ML:
        bound = lower_bound(fractions) if has_verdict else None
        is_withheld = margin is None or arm_verdict in (None, "contradicted", "mixed")
        result |= {"lower_bound": bound, "not_inferior": None if is_withheld else bound > -margin}
    return result


def divided(points: Differences, headrooms: Mapping[str, float]) -> dict[str, list[float]]:
    """Return differences as fractions of the headrooms."""
    return {measure: [value / headrooms[measure] for value in values] for measure, values in points.items()}


def statistics_of(points: Differences, headrooms: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return what the rule reads of the differences, by measure; ``points`` is their mean before the division."""
    fractions = divided(points, headrooms)
    p_values = p_values_of(fractions)
    return {
        measure: {
            "differences": values,
            "mean": fmean(values),
            "interval_90": interval(values, 0.90),
            "p_holm": p_values[measure],
            "points": fmean(points[measure]),
        }
        for measure, values in fractions.items()
    }


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(HeadroomOptions, sys.argv[1:], __doc__, "headroom.py"))
