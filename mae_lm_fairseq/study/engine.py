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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import unified_diff
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.study.endpoints import ENDPOINTS, Values
from mae_lm_fairseq.study.looks import Look, new_looks
from mae_lm_fairseq.study.plan import Model, Plan
from mae_lm_fairseq.study.report import TABLE, Results, write_report
from mae_lm_fairseq.study.results import Training
from mae_lm_fairseq.study.training import Workspace, fingerprints, runs_of
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

    names = {}
    for model in workspace.plan.models:
        for planned in workspace.plan.measures:
            names[workspace.key(planned, model)] = planned.name

    def print_run(run: Run) -> None:
        name = run.name
        if run.updates:
            name += f", after {run.updates[1]:,} updates"
        for key, values in read_result(run)["measures"].items():
            print(f"{name}: {names[key]}: {_in_one_line(values)}", flush=True)
        finished()

    while any(not run.result.exists() for run in all_runs(workspace)):
        run_all(all_runs(workspace), jobs, workspace.threads, _environments(), print_run)


def _in_one_line(values: Mapping[str, Any]) -> str:
    """Return the values that are defined, those by layer at the last one."""
    shown = []
    for name, value in values.items():
        number = value[-1] if isinstance(value, list) else value
        if number is not None:
            shown.append(f"{name} {number:.4g}")
    return ", ".join(shown)


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
    path = out / PLAN
    if path.exists():
        history = read_history(path)
    else:
        cores = os.cpu_count() or 1
        history = History(max(1, cores // jobs), versions=[], looks=[])

    files = fingerprints(plan)
    version = {"date": str(date.today()), "plan": plan.document.text, "files": files}
    last = history.versions[-1] if history.versions else {}
    if {**last, "date": version["date"]} != version:
        history = history._replace(versions=[*history.versions, version])
        write_record(path, history._asdict())
    return Workspace(plan, out, history.threads, files)


class History(NamedTuple):
    """Content of ``plan.json``: the number of threads of each run, the versions of the plan, and the looks."""

    threads: int
    versions: list[dict[str, Any]]
    looks: list[dict[str, Any]]


def read_history(path: Path) -> History:
    """Read ``plan.json``.

    Raises:
        UserError: if it is damaged.
    """

    def checked(content: dict[str, Any]) -> History:
        typed(content["threads"], int)
        typed(content["versions"], tuple[Version, ...])
        typed(content["looks"], tuple[Look, ...])
        return History(content["threads"], content["versions"], content["looks"])

    remedy = "restore it: it has the number of threads, and the looks at the results"
    return read_record(path, checked, remedy)


@dataclass(frozen=True)
class Version:
    """A version of a plan in ``plan.json``: its date and text, and the fingerprints of its files by path."""

    date: str
    plan: str
    files: Mapping[str, str]


def changes(versions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return date and lines of each change of a plan, those that were removed and added; files count as lines."""

    def lines(version: Mapping[str, Any]) -> list[str]:
        files = [f"{path}: {fingerprint[:10]}" for path, fingerprint in version["files"].items()]
        return files + version["plan"].splitlines()

    changed = []
    for before, after in pairwise(versions):
        differing = unified_diff(lines(before), lines(after), n=0, lineterm="")
        stated = []
        for line in islice(differing, 2, None):  # after the names of the versions, which are empty
            text = line[1:]
            is_place = line.startswith("@")
            if text.strip() and not is_place and not text.startswith("#"):
                stated.append(line)
        if stated:
            changed.append({"date": after["date"], "lines": stated})
    return changed


def needed(workspace: Workspace) -> list[Training]:
    """Return the trainings that are known to be needed: of a model with several rates, first those of the rule's seeds.

    Seed by seed, so that every model has its first results early.
    """
    plan = workspace.plan
    at_all_rates = []
    for model in plan.models:
        for rate in model.learning_rates:
            at_all_rates += [workspace.training(model, rate, seed) for seed in model.all_seeds]

    trainings = []
    if plan.rates:
        for training in at_all_rates:
            if training.seed in training.model.all_seeds[: plan.rates.seeds]:
                trainings.append(training)
    chosen = {model.name: choose(workspace, model) for model in plan.models}
    seeds = set().union(*(model.all_seeds for model in plan.models))
    for seed in sorted(seeds):
        for model in plan.models:
            choice = chosen[model.name]
            if seed in model.all_seeds and choice.is_known:
                trainings.append(workspace.training(model, choice.rate, seed))
    # Trainings of a rate that was left after damage with all seeds are also reported.
    last = plan.train.updates
    trainings += [training for training in at_all_rates if training.result(last).exists()]
    by_folder = {training.folder: training for training in trainings}
    return [*by_folder.values()]


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
    rule = workspace.plan.rates
    if rule is None or not model.learning_rates:
        return Choice(*model.learning_rates)
    rate = _lowest_rate(workspace, model)
    if rate is None:
        return Choice(is_known=False)
    if rule.halve is None:
        return Choice(rate)

    def damage(seeds: Sequence[int]) -> float | None:
        trainings = [workspace.training(model, rate, seed) for seed in seeds]
        return _mean(workspace, trainings, rule.halve, "end_less_best_checkpoint")

    # First by the seeds that the rate was chosen with, so that damage is found before the others are trained.
    at_first = damage(model.all_seeds[: rule.seeds])
    at_all = damage(model.all_seeds)
    if at_first is None:
        return Choice(rate, is_known=False)
    if at_first < -rule.by:
        return Choice(rate / 2, damage=at_first)
    if at_all is not None and at_all < -rule.by:
        return Choice(rate / 2, damage=at_all)
    return Choice(rate, damage=None if math.isnan(at_first) else at_first)


def _lowest_rate(workspace: Workspace, model: Model) -> float | None:
    """Return the learning rate with the lowest value, those without a number last; None if results are missing."""
    rule, rates = workspace.plan.rates, model.learning_rates
    if len(rates) == 1:
        return rates[0]
    means = {}
    for rate in rates:
        trainings = [workspace.training(model, rate, seed) for seed in model.all_seeds[: rule.seeds]]
        means[rate] = _mean(workspace, trainings, rule.lowest, "last")
    if None in means.values():
        return None
    return min(means, key=lambda rate: (math.isnan(means[rate]), means[rate]))


def _mean(workspace: Workspace, trainings: Iterable[Training], value: str, endpoint: str) -> float | None:
    """Return the mean of an endpoint over some trainings; None if one of them is not measured at its end."""
    planned, name = workspace.plan.measure_and_value(value)
    by_seed = [workspace.values(training, planned) for training in trainings]
    if any(workspace.plan.train.updates not in values for values in by_seed):
        return None
    return float(ENDPOINTS[endpoint](Values(by_seed, name)).mean())


def collect(workspace: Workspace, is_reported: bool = False) -> dict[str, Any]:
    """Write ``results.json`` with everything of the plan that is finished, and return its content; record a look.

    The report of earlier results is removed.
    """
    plan, out = workspace.plan, workspace.out
    history = read_history(out / PLAN)
    rows = [row_of(workspace, training) for training in needed(workspace)]
    content = {
        "title": plan.title,
        "plan": plan.document.text,
        "files": dict(workspace.files),
        "threads": workspace.threads,
        "changes": changes(history.versions),
        "looks": history.looks,
        "rates": {model.name: vars(choose(workspace, model)) for model in plan.models},
        "runs": [row for row in rows if row],
    }
    if is_reported:
        new = new_looks(Results(content).tested(), plan, history.looks, str(date.today()))
        if new:
            content["looks"] = [*history.looks, *new]
            write_record(out / PLAN, history._replace(looks=content["looks"])._asdict())
    json.dumps(content, allow_nan=False)  # other programs could not read NaN
    retract(out, REPORT, TABLE)  # which would be those of other results
    write_record(out / RESULTS, content, indent=None)
    return content


def row_of(workspace: Workspace, training: Training) -> dict[str, Any]:
    """Return the results of a training; empty if nothing is finished."""
    records = [record for updates in workspace.plan.checkpoints for record in training.records(updates)]
    if not records:
        return {}
    results = [record["result"] for record in records]
    values = {planned.name: workspace.values(training, planned) for planned in workspace.plan.measures}
    measured = {name: by_updates for name, by_updates in values.items() if by_updates}
    versions = set()
    for result in results:
        versions.add(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    seconds = math.fsum(record["seconds"] for record in records)
    measuring = math.fsum(result["seconds"] for result in results)
    return {
        "model": training.model.name,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
        "directory": training.folder.name,
        "commands": [_plain_command(record["command"]) for record in records if record["command"]],
        "commits": sorted({str(result["commit"]) for result in results}),
        "machines": sorted({result["machine"] for result in results}),
        "versions": sorted(versions),
        "seconds": {"training": round(seconds - measuring, 1), "measuring": round(measuring, 1)},
        "measures": json.loads(json.dumps(measured), parse_constant=lambda constant: None),
    }


def _plain_command(words: Sequence[str]) -> str:
    """Return a command without the paths of this installation."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return shlex.join(names.get(word, word) for word in words)


def _environments() -> list[dict[str, str]]:
    """Return the environment of the runs at the same time: each has a GPU of its own, as far as there are any."""
    if not torch.cuda.is_available():
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = range(torch.cuda.device_count())
    if visible:
        devices = visible.split(",")
    return [{"CUDA_VISIBLE_DEVICES": str(device)} for device in devices]
