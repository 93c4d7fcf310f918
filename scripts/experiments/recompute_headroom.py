#!/usr/bin/env python3
"""Recompute the tasks and the verdicts of the study `headroom`, and compare them with the committed files.

    recompute_headroom.py tasks tasks.json RESULTS_OF_STAGE_T...
    recompute_headroom.py verdicts tasks.json simulation.json verdicts.json RESULTS...

This program shares no code with headroom.py and the package: it follows the written rule of the study with numpy and
scipy alone, so that an error in headroom.py shows. The simulation is an input, and is not recomputed. The program
prints each contrast with the largest deviation of its numbers from the committed ones. It exits with 0 if every number
agrees to 1e-9, else with 1 and a list of what differs.
"""

import argparse
import json
import math
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import stats

BASELINE = "MLM"
THREE_ML = "3ML-self"
RANDOM = "random weights"
METRICS = {
    "CoLA": "matthews",
    "SST-2": "accuracy",
    "STS-B": "spearman",
    "RTE": "accuracy",
    "UPOS": "accuracy",
    "DEPREL": "accuracy",
    "WNUT-17": "f1",
}
# Cases in the set that scores: labelled words for UPOS and DEPREL, entities for WNUT-17, rows for the others.
CASES = {"CoLA": 1043, "SST-2": 872, "STS-B": 1500, "RTE": 277, "UPOS": 25147, "DEPREL": 25133, "WNUT-17": 836}
LEAST_DEVIATIONS = 5
LOWEST_RATE = 0.0001
MOST_SEEDS = 5
TOLERANCE = 1e-9


def task_of(measure):
    return measure.split(", ")[0]


@contextmanager
def errors_name(*paths):
    """End the program with an error that names the files, if what is read of them fails."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        names = ", ".join(map(str, paths))
        raise SystemExit(f"error: {names}: missing, or not such JSON: {type(error).__name__}: {error}") from error


def read(path, parse):
    """Return what `parse` makes of a JSON file."""
    with errors_name(path):
        return parse(json.loads(Path(path).read_text()))


def read_scores(paths):
    """Return the scores in all files of results."""
    runs = []
    for path in paths:
        runs += read(path, lambda results: list(results["runs"]))
    with errors_name(*paths):
        return scores_of(runs)


def scores_of(runs):
    """Return {(model, measure): {rate: {seed: (dev score, test score)}}} of the measures that fine-tune."""
    scores = {}
    for run in runs:
        for measure, by_updates in run["measures"].items():
            if task_of(measure) not in METRICS:
                continue
            latest = max(by_updates, key=int) if len(by_updates) > 1 else next(iter(by_updates))
            values = by_updates[latest]
            prefix = METRICS[task_of(measure)] + " at "
            by_rate = scores.setdefault((run["model"], measure), {})
            for name in values:
                if name.startswith(prefix):
                    by_seed = by_rate.setdefault(float(name.removeprefix(prefix)), {})
                    if run["seed"] in by_seed:
                        raise ValueError(f"two runs of {run['model']} with seed {run['seed']}")
                    by_seed[run["seed"]] = (values[name], values[f"test_{name}"])
                    if not np.all(np.isfinite(by_seed[run["seed"]])):
                        raise ValueError(f"{run['model']}, seed {run['seed']}, {measure}: {name} is not finite")
    return scores


def by_rate_of(scores, model, measure):
    """Return {rate: {seed: (dev score, test score)}} of a model and measure, with the same seeds at each rate."""
    by_rate = scores.get((model, measure))
    if not by_rate:
        raise SystemExit(f"error: the results have no scores of {model} in {measure}")
    if len({frozenset(by_seed) for by_seed in by_rate.values()}) > 1:
        raise SystemExit(f"error: the seeds of {model} in {measure} differ between fine-tuning rates")
    return by_rate


def chosen_rate(by_rate):
    """Return the rate with the highest mean dev score, the lowest of a tie."""
    means = {}
    for rate, by_seed in by_rate.items():
        means[rate] = np.mean([dev for dev, _ in by_seed.values()])
    # Rounding makes means of the same rows differ in the last bits.
    return min(rate for rate in means if means[rate] > max(means.values()) - TOLERANCE)


def tests_at(by_rate, rate):
    """Return the test scores at a rate, by ascending seed."""
    return [by_rate[rate][seed][1] for seed in sorted(by_rate[rate])]


def tests_at_chosen_rate(scores, model, measure):
    """Return the test scores of a model at its chosen rate, by ascending seed."""
    by_rate = by_rate_of(scores, model, measure)
    return tests_at(by_rate, chosen_rate(by_rate))


def mean_of_arms(scores, arms, measure):
    """Return the mean over the arms of their mean test score."""
    means = [np.mean(tests_at_chosen_rate(scores, arm, measure)) for arm in arms]
    return float(np.mean(means))


def recompute_tasks(scores):
    """Return the content of tasks.json, with {measure: candidate} in place of the list of candidates."""
    pretrained_models = sorted({model for model, _ in scores} - {RANDOM})
    candidates = {}
    for measure in sorted({measure for _, measure in scores}):
        random_scores = tests_at_chosen_rate(scores, RANDOM, measure)
        random = float(np.mean(random_scores))
        pretrained = mean_of_arms(scores, pretrained_models, measure)
        sampling = sampling_deviation(task_of(measure), pretrained)
        of_seeds = max(np.std(random_scores, ddof=1), sampling / 2)
        deviation = float(np.sqrt(of_seeds**2 + sampling**2))
        candidates[measure] = {
            "measure": measure,
            "random": random,
            "pretrained": pretrained,
            "deviation": deviation,
            "deviations": (pretrained - random) / deviation,
        }
    return {"candidates": candidates, "chosen": choose(candidates)}


def sampling_deviation(task, score):
    """Return the deviation (points) of a score (%) by the drawing of what is scored."""
    fraction = score / 100
    if METRICS[task] in ("accuracy", "f1"):
        return 100 * math.sqrt(fraction * (1 - fraction) / CASES[task])
    return 100 * (1 - fraction**2) / math.sqrt(CASES[task])


def choose(candidates):
    """Return the four measures with the largest deviations, none below five, at most two of one task."""
    eligible = [measure for measure in candidates if candidates[measure]["deviations"] >= LEAST_DEVIATIONS]
    chosen = []
    for measure in sorted(eligible, key=lambda measure: -candidates[measure]["deviations"]):
        of_same_task = [other for other in chosen if task_of(other) == task_of(measure)]
        if len(of_same_task) < 2 and len(chosen) < 4:
            chosen.append(measure)
    return chosen


def tasks_by_measure(tasks):
    """Return the content of a tasks.json, with {measure: candidate} in place of the list of candidates."""
    candidates = {candidate["measure"]: candidate for candidate in tasks["candidates"]}
    if len(candidates) < len(tasks["candidates"]):
        raise ValueError("a candidate is there twice")
    return {**tasks, "candidates": candidates}


def stage_t_headrooms(tasks):
    """Return {measure: headroom of stage T in points} of the chosen measures."""
    candidates = tasks_by_measure(tasks)["candidates"]
    return {measure: candidates[measure]["pretrained"] - candidates[measure]["random"] for measure in tasks["chosen"]}


def setting_of(simulation):
    """Return the setting that the simulation chose, None if it chose none."""
    chosen = simulation["chosen"]
    if chosen is None:
        return None
    return {"measures": list(chosen["measures"]), "margin": float(chosen["margin"])}


def recompute_verdicts(scores, of_stage_t, setting):
    """Return the content of verdicts.json, from {measure: headroom of stage T} and the setting of the simulation."""
    in_rule = list(of_stage_t) if setting is None else setting["measures"]
    for measure in in_rule:
        if measure not in of_stage_t:
            raise SystemExit(f"error: the simulation's {measure} is not a chosen measure of stage T")

    arms = sorted({model for model, _ in scores} - {RANDOM})
    measures = sorted({measure for _, measure in scores} | set(in_rule))
    seeds = seeds_of(scores, arms, measures)
    headrooms = {measure: main_headroom(scores, arms, measure) for measure in measures}
    left = [measure for measure in in_rule if headrooms[measure] >= of_stage_t[measure] / 2]

    # The margin of the verdicts of equivalence, None if they are not given.
    margin = None
    if setting is not None and len(seeds) >= MOST_SEEDS:
        margin = setting["margin"]

    headrooms_left = {measure: headrooms[measure] for measure in left}
    headrooms_outside = {measure: headrooms[measure] for measure in measures if measure not in left}
    of_arms = {}
    for arm in arms:
        if arm != BASELINE:
            of_arms[arm] = recompute_arm(scores, arm, headrooms_left, margin)
            outside = {measure: points_of(scores, arm, measure) for measure in headrooms_outside}
            of_arms[arm]["outside_the_rule"] = contrasts(outside, headrooms_outside)
    return {"headrooms": headrooms, "measures": left, "arms": of_arms}


def seeds_of(scores, arms, measures):
    """Return the pretraining seeds, the same ones of all arms in all measures."""
    found = set()
    for arm in arms:
        for measure in measures:
            for by_seed in by_rate_of(scores, arm, measure).values():
                found.add(tuple(sorted(by_seed)))
    if not found:
        return ()
    if len(found) > 1:
        raise SystemExit(f"error: the arms differ in seeds: {sorted(found)}")
    seeds = found.pop()
    if seeds != tuple(range(1, len(seeds) + 1)):
        raise SystemExit(f"error: the seeds are not 1, 2, 3, ... without a gap: {seeds}")
    if len(seeds) > MOST_SEEDS:
        raise SystemExit(f"error: there are more than {MOST_SEEDS} seeds: {seeds}")
    if len(seeds) == 1:
        raise SystemExit("error: one seed gives no interval")
    return seeds


def main_headroom(scores, arms, measure):
    """Return the mean of the arms less that of random weights, in points."""
    random = np.mean(tests_at_chosen_rate(scores, RANDOM, measure))
    return float(mean_of_arms(scores, arms, measure) - random)


def recompute_arm(scores, arm, headrooms, margin):
    """Return what verdicts.json says of an arm."""
    points_at_chosen = {}
    points_at_lowest = {}
    for measure in headrooms:
        of_arm = by_rate_of(scores, arm, measure)
        of_mlm = by_rate_of(scores, BASELINE, measure)
        if set(of_arm) != set(of_mlm):
            raise SystemExit(f"error: {measure}: {arm} and {BASELINE} differ in fine-tuning rates")
        if LOWEST_RATE not in of_arm:
            raise SystemExit(f"error: {measure}: {arm} has no scores at the rate {LOWEST_RATE}")

        points_at_chosen[measure] = points_of(scores, arm, measure)

        tests_of_arm = tests_at(of_arm, LOWEST_RATE)
        tests_of_mlm = tests_at(of_mlm, LOWEST_RATE)
        points_at_lowest[measure] = np.subtract(tests_of_arm, tests_of_mlm)

    at_chosen = contrasts(points_at_chosen, headrooms)
    at_lowest = contrasts(points_at_lowest, headrooms)
    name = verdict(at_chosen, at_lowest, margin)
    recomputed = {
        "verdict": name,
        "is_within_margin": None if name is None or margin is None else is_within(at_chosen, margin),
        "at_the_chosen_rates": at_chosen,
        "at_the_lowest_rate": at_lowest,
    }
    if arm == THREE_ML:
        recomputed["lower_bound"] = None
        if recomputed["verdict"] is not None:
            recomputed["lower_bound"] = lower_bound_of(at_chosen)
        recomputed["not_inferior"] = not_inferior(recomputed["verdict"], recomputed["lower_bound"], margin)
    return recomputed


def points_of(scores, arm, measure):
    """Return the arm's test scores less the MLM's, each at its chosen rate, by ascending seed."""
    tests_of_arm = tests_at_chosen_rate(scores, arm, measure)
    tests_of_mlm = tests_at_chosen_rate(scores, BASELINE, measure)
    return np.subtract(tests_of_arm, tests_of_mlm)


def lower_bound_of(table):
    """Return the lower 95 % bound of the mean difference over the measures."""
    differences = [contrast["differences"] for contrast in table.values()]
    by_seed = np.mean(differences, axis=0)
    low, _ = interval_90(by_seed)
    return low


def not_inferior(name, lower_bound, margin):
    """Return whether an arm with this verdict is not inferior, None if that is not said."""
    if name in (None, "contradicted", "mixed"):
        return None
    if margin is None:
        return None
    return lower_bound > -margin


def contrasts(points, headrooms):
    """Return {measure: contrast} of {measure: differences in points by seed}."""
    differences = {measure: values / headrooms[measure] for measure, values in points.items()}
    p_values = holm({measure: p_value(values) for measure, values in differences.items()})
    table = {}
    for measure, values in differences.items():
        table[measure] = {
            "differences": values.tolist(),
            "mean": float(np.mean(values)),
            "interval_90": interval_90(values),
            "p_holm": p_values[measure],
            "points": float(np.mean(points[measure])),
        }
    return table


def interval_90(values):
    standard_error = np.std(values, ddof=1) / math.sqrt(len(values))
    half = stats.t.ppf(0.95, len(values) - 1) * standard_error
    mean = np.mean(values)
    return [float(mean - half), float(mean + half)]


def p_value(values):
    """Return p of the two-sided t test of the mean against 0."""
    if np.ptp(values) < TOLERANCE:
        return 1.0
    standard_error = np.std(values, ddof=1) / math.sqrt(len(values))
    statistic = np.mean(values) / standard_error
    return float(2 * stats.t.sf(abs(statistic), len(values) - 1))


def holm(p_values):
    """Return the p values, each corrected for all of them."""
    corrected = {}
    largest = 0.0
    for smaller, measure in enumerate(sorted(p_values, key=p_values.get)):
        product = (len(p_values) - smaller) * p_values[measure]
        largest = max(largest, min(product, 1.0))
        corrected[measure] = largest
    return corrected


def verdict(at_chosen, at_lowest, margin):
    """Return the verdict; a margin of None withholds those of equivalence."""
    if len(at_chosen) < 2:
        return None
    signs = significant_signs(at_chosen)
    if signs:
        return {(1,): "supported", (-1,): "contradicted", (-1, 1): "mixed"}[tuple(sorted(signs))]
    if margin is None or not is_within(at_chosen, margin):
        return "cannot tell"
    signs = significant_signs(at_lowest)
    if signs == {1}:
        return "speed only"
    if signs == {-1}:
        return "slower only"
    return "equivalent"


def is_within(at_chosen, margin):
    """Return whether all intervals of 90 % lie inside the margin."""
    for contrast in at_chosen.values():
        low, high = contrast["interval_90"]
        if low <= -margin or high >= margin:
            return False
    return True


def significant_signs(table):
    return {int(np.sign(contrast["mean"])) for contrast in table.values() if contrast["p_holm"] < 0.05}


def flatten(value, place=()):
    """Return {path of keys and indices: value} of each number, text and empty container in a JSON value."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        return {place: value}
    leaves = {}
    for key, item in value.items():
        leaves.update(flatten(item, (*place, str(key))))
    return leaves


def compare(own, committed):
    """Return {path: deviation}, infinite where a value is missing, extra or another text."""
    own = flatten(own)
    committed = flatten(committed)
    deviations = {}
    for place in {**own, **committed}:
        own_value = own.get(place)
        committed_value = committed.get(place)
        if type(own_value) is float and type(committed_value) in (float, int):
            deviation = abs(own_value - committed_value)
            deviations[place] = math.inf if math.isnan(deviation) else deviation
        else:
            same = type(own_value) is type(committed_value) and own_value == committed_value
            deviations[place] = 0.0 if same else math.inf
    return deviations


def largest_below(deviations, *place):
    largest = max(deviation for path, deviation in deviations.items() if path[: len(place)] == place)
    return f"differs by at most {largest:.1e}"


def check_tasks(tasks_path, *results_paths):
    """Print the recomputed candidates, and return the deviations from a tasks.json."""
    own = recompute_tasks(read_scores(results_paths))
    deviations = compare(own, read(tasks_path, tasks_by_measure))
    for measure, candidate in own["candidates"].items():
        numbers = [f"{key} {candidate[key]:.6f}" for key in ("random", "pretrained", "deviation", "deviations")]
        print(f"{measure}: {', '.join(numbers)}; {largest_below(deviations, 'candidates', measure)}")
    print("chosen: " + "; ".join(own["chosen"]))
    return deviations


def check_verdicts(tasks_path, simulation_path, verdicts_path, *results_paths):
    """Print the recomputed contrasts, and return the deviations from a verdicts.json."""
    scores = read_scores(results_paths)
    of_stage_t = read(tasks_path, stage_t_headrooms)
    own = recompute_verdicts(scores, of_stage_t, read(simulation_path, setting_of))
    deviations = compare(own, read(verdicts_path, dict))
    for measure, points in own["headrooms"].items():
        use = "used" if measure in own["measures"] else "not used"
        deviation = largest_below(deviations, "headrooms", measure)
        print(f"{measure}: headroom {points:.6f}, {use}; {deviation}")
    for arm, of_arm in own["arms"].items():
        for rates in ("at_the_chosen_rates", "at_the_lowest_rate", "outside_the_rule"):
            for measure, contrast in of_arm[rates].items():
                low, high = contrast["interval_90"]
                numbers = f"mean {contrast['mean']:.6f} [{low:.6f}, {high:.6f}], p {contrast['p_holm']:.6f}"
                deviation = largest_below(deviations, "arms", arm, rates, measure)
                print(f"{arm}, {measure}, {rates.replace('_', ' ')}: {numbers}; {deviation}")
        print(f"{arm}: {of_arm['verdict']}")
        if arm == THREE_ML:
            print(f"{arm}: lower bound {of_arm['lower_bound']}, not inferior: {of_arm['not_inferior']}")
    return deviations


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    tasks = commands.add_parser("tasks", help="recompute tasks.json")
    tasks.add_argument("tasks", help="tasks.json")
    tasks.set_defaults(check=lambda options: check_tasks(options.tasks, *options.results))
    verdicts = commands.add_parser("verdicts", help="recompute verdicts.json")
    for name in ("tasks", "simulation", "verdicts"):
        verdicts.add_argument(name, help=f"{name}.json")
    verdicts.set_defaults(
        check=lambda options: check_verdicts(options.tasks, options.simulation, options.verdicts, *options.results)
    )
    for command in (tasks, verdicts):
        command.add_argument("results", nargs="+", help="results.json of a study")
    options = parser.parse_args(arguments)

    deviations = options.check(options)
    differing = [place for place, deviation in deviations.items() if deviation > TOLERANCE]
    if differing:
        lines = [f"{', '.join(place)}: deviation {deviations[place]:.3g}" for place in differing]
        sys.exit("the committed file differs (inf: missing, extra or another text):\n" + "\n".join(lines))
    print("every number agrees")


if __name__ == "__main__":
    main()
