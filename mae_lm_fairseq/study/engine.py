"""The engine: trains and measures what a plan lacks, applies the rule for learning rates, and collects the results.

Every part of a study leaves a file of its own under ``OUT/runs``, in a directory that is named by the key of what it
depends on, and is skipped if that exists. So a study resumes after any interruption, and a plan that was changed runs
what is new, and finds the rest.
"""

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import unified_diff
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.study.endpoints import ENDPOINTS, Values
from mae_lm_fairseq.study.looks import Look, new_looks
from mae_lm_fairseq.study.measures import fingerprints
from mae_lm_fairseq.study.plan import Model, Plan
from mae_lm_fairseq.study.report import Results, write_report
from mae_lm_fairseq.study.results import Training, measure
from mae_lm_fairseq.study.training import Workspace, measuring_weight, training_runs
from mae_lm_fairseq.training.keys import key_of
from mae_lm_fairseq.training.runner import Run, read_result, run_all
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, retract
from mae_lm_fairseq.utils.files import make_output_directory, read_record, write_record
from mae_lm_fairseq.utils.typed import typed

PLAN = "plan.json"


def run_study(plan: Plan, out: Path, jobs: int = 1) -> dict[str, Any]:
    """Run, or resume, everything; write ``results.json`` and the report, and return the results.

    Args:
        jobs: number of runs at the same time.

    Raises:
        UserError: if a run fails.
        Interrupted: if the program receives SIGINT, SIGTERM or SIGHUP; what is finished is reported.
    """
    workspace = begin(plan, out, jobs)
    try:
        complete(workspace, jobs, lambda: collect(workspace))
    finally:
        results = collect(workspace, is_reported=True)
        write_report(out, results)
    return results


def complete(workspace: Workspace, jobs: int = 1, finished: Callable[[], Any] = lambda: None) -> None:
    """Run everything that a plan lacks, and print what is measured.

    Raises:
        UserError: if a run fails.
    """

    def print_run(run: Run) -> None:
        after = f", after {run.updates[1]:,} updates" if run.updates else ""
        names = {workspace.key(one, model): one.name for model in plan.models for one in plan.measures}
        for key, values in read_result(run)["measures"].items():
            last = {name: value[-1] if isinstance(value, list) else value for name, value in values.items()}
            shown = ", ".join(f"{name} {value:.4g}" for name, value in last.items() if value is not None)
            print(f"{run.name}{after}: {names[key]}: {shown}", flush=True)
        finished()

    plan = workspace.plan
    while any(not run.result.exists() for run in all_runs(workspace)):
        run_all(all_runs(workspace), jobs, workspace.threads, _environments(), print_run)


def all_runs(workspace: Workspace) -> list[Run]:
    """Return the runs of all trainings that are known to be needed."""
    return [run for training in needed(workspace) for run in runs_of(workspace, training)]


def begin(plan: Plan, out: Path, jobs: int) -> Workspace:
    """Record the plan in ``plan.json``, which has all of its versions, and return where it is run.

    The number of threads of each run is chosen when a study begins, because results depend on it in their last digits.

    Raises:
        UserError: if the directory cannot be written, or ``plan.json`` is damaged.
    """
    make_output_directory(out)
    threads, versions, looks = max(1, (os.cpu_count() or 1) // jobs), [], []
    if (path := out / PLAN).exists():
        threads, versions, looks = read_history(path)
    files = fingerprints(plan.data, [*(one.options for one in plan.measures), *plan.models])
    now = {"date": str(date.today()), "plan": plan.document.text, "files": files}
    if not versions or {**versions[-1], "date": now["date"]} != now:
        write_record(path, {"threads": threads, "versions": [*versions, now], "looks": looks})
    return Workspace(plan, out, threads, files)


def read_history(path: Path) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what ``plan.json`` has: the number of threads, the versions of the plan, and the looks.

    Raises:
        UserError: if it is damaged.
    """

    def parts(content: dict[str, Any]) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
        typed(content["threads"], int)
        typed(content["versions"], tuple[Version, ...])
        typed(content["looks"], tuple[Look, ...])
        return content["threads"], content["versions"], content["looks"]

    remedy = "restore it: it has the number of threads, and the looks at the results"
    return read_record(path, parts, remedy)


@dataclass(frozen=True)
class Version:
    """A version of a plan in ``plan.json``: its date and text, and the fingerprints of its files by path."""

    date: str
    plan: str
    files: Mapping[str, str]


def changes(versions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return date and lines of each change of a plan, those that were removed and added; files count as lines."""

    def lines(version: Mapping[str, Any]) -> list[str]:
        return [*(f"{path}: {key[:10]}" for path, key in version["files"].items()), *version["plan"].splitlines()]

    found = []
    for before, after in pairwise(versions):
        differing = [*unified_diff(lines(before), lines(after), n=0, lineterm="")][2:]
        if stated := [line for line in differing if line[1:].strip() and line[0] != "@" and line[1] != "#"]:
            found.append({"date": after["date"], "lines": stated})
    return found


def needed(workspace: Workspace) -> list[Training]:
    """Return the trainings that are known to be needed: of a model with several rates, first those of the rule's seeds.

    Seed by seed, so that every model has its first results early.
    """
    plan = workspace.plan
    at_all_rates = [
        workspace.training(model, rate, seed)
        for model in plan.models
        for rate in model.learning_rates
        for seed in model.all_seeds
    ]
    trainings = [one for one in at_all_rates if plan.rates and one.seed in one.model.all_seeds[: plan.rates.seeds]]
    chosen = {model.name: choose(workspace, model) for model in plan.models}
    for seed in sorted({seed for model in plan.models for seed in model.all_seeds}):
        for model in plan.models:
            if seed in model.all_seeds and chosen[model.name].is_known:
                trainings.append(workspace.training(model, chosen[model.name].rate, seed))
    # Trainings of a rate that was left after damage with all seeds are also reported.
    trainings += [one for one in at_all_rates if one.result(plan.train.updates).exists()]
    return [*{training.folder: training for training in trainings}.values()]


@dataclass(frozen=True)
class Choice:
    """The learning rate that a model is trained at with all seeds.

    Attributes:
        rate: the learning rate, half of the chosen one after damage; None for that of the options or the recipe.
        is_known: whether the rule has the results that it needs.
        damage: last layer at the end less its best checkpoint, at the chosen rate, if the rule asks.
    """

    rate: float | None = None
    is_known: bool = True
    damage: float | None = None


def choose(workspace: Workspace, model: Model) -> Choice:
    """Apply the rule for learning rates to a model."""
    plan, rates, rule = workspace.plan, model.learning_rates, workspace.plan.rates
    if not rates or rule is None:
        return Choice(*rates)
    first = model.all_seeds[: rule.seeds]

    def mean(value: str, endpoint: str, rate: float, seeds: Sequence[int]) -> float | None:
        """Return the mean of an endpoint over some seeds at a learning rate; None if one of them is missing."""
        measure, name = plan.measured_value(value)
        runs = [workspace.values(workspace.training(model, rate, seed), measure) for seed in seeds]
        if any(plan.train.updates not in run for run in runs):
            return None
        return float(ENDPOINTS[endpoint](Values(runs, name)).mean())

    means = (
        {rate: mean(rule.lowest, "last", rate, first) for rate in rates} if len(rates) > 1 else dict.fromkeys(rates, 0)
    )
    if None in means.values():
        return Choice(is_known=False)
    rate = min(means, key=lambda rate: (math.isnan(means[rate]), means[rate]))
    if rule.halve is None:
        return Choice(rate)
    # First by the seeds that the rate was chosen with, so that damage is found before the others are trained.
    found = [mean(rule.halve, "end_less_best_checkpoint", rate, seeds) for seeds in (first, model.all_seeds)]
    damage = next((one for one in found if one is not None and one < -rule.by), found[0])
    is_damaged = damage is not None and damage < -rule.by
    is_defined = damage is not None and not math.isnan(damage)
    return Choice(rate / 2 if is_damaged else rate, found[0] is not None, damage if is_defined else None)


def runs_of(workspace: Workspace, training: Training) -> list[Run]:
    """Return the runs of a training: to every checkpoint, and of measures that it lacks there."""
    runs = []
    for updates, run in training_runs(workspace, training).items():
        runs.append(run)
        done, measuring = training.measured(updates), workspace.measuring(training, updates)
        missing = {key: one for key, one in measuring.measures.items() if key not in done}
        if run.result.exists() and missing:
            name = f"{training.name}, after {updates:,} updates"
            weight = measuring_weight(workspace.plan) * len(missing)
            result = training.folder / f"measures-{updates}-{key_of([*missing])}.json"
            read = partial(measure, measuring=replace(measuring, measures=missing))
            runs.append(Run(name, (), result, read, weight=weight))
    return runs


def collect(workspace: Workspace, is_reported: bool = False) -> dict[str, Any]:
    """Write ``results.json`` with everything of the plan that is finished, and return its content; record a look.

    The report of earlier results is removed.
    """
    plan, out = workspace.plan, workspace.out
    _, versions, looks = read_history(out / PLAN)
    content = {
        "title": plan.title,
        "plan": plan.document.text,
        "files": dict(workspace.files),
        "threads": workspace.threads,
        "changes": changes(versions),
        "looks": looks,
        "rates": {model.name: vars(choose(workspace, model)) for model in plan.models},
        "runs": [row for training in needed(workspace) if (row := row_of(workspace, training))],
    }
    if is_reported and (new := new_looks(Results(content).tested(), plan, looks, str(date.today()))):
        content["looks"] = [*looks, *new]
        write_record(out / PLAN, {"threads": workspace.threads, "versions": versions, "looks": content["looks"]})
    json.dumps(content, allow_nan=False)  # other programs could not read NaN
    retract(out, REPORT)  # which would be that of other results
    write_record(out / RESULTS, content, indent=None)
    return content


def row_of(workspace: Workspace, training: Training) -> dict[str, Any]:
    """Return the results of a training; empty if nothing is finished."""
    records = [record for updates in workspace.plan.checkpoints for record in training.records(updates)]
    results = [record["result"] for record in records]
    values = {one.name: found for one in workspace.plan.measures if (found := workspace.values(training, one))}
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    measuring = math.fsum(result["seconds"] for result in results)
    return records and {
        "model": training.model.name,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
        "directory": training.folder.name,
        "commands": [shlex.join(names.get(word, word) for word in one["command"]) for one in records if one["command"]],
        "commits": sorted({str(result["commit"]) for result in results}),
        "machines": sorted({result["machine"] for result in results}),
        "versions": sorted({", ".join(map(" ".join, result["versions"].items())) for result in results}),
        "seconds": {
            "training": round(math.fsum(record["seconds"] for record in records) - measuring, 1),
            "measuring": round(measuring, 1),
        },
        "measures": json.loads(json.dumps(values), parse_constant=lambda constant: None),
    }


def _environments() -> list[dict[str, str]]:
    """Return the environment of the runs at the same time: each has a GPU of its own, as far as there are any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": device} for device in devices if torch.cuda.is_available()] or [{}]
