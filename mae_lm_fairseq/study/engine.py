"""The engine: trains and measures what a plan lacks, and collects the results.

It runs what is known to be needed, looks at the results, which may make more runs needed, and so on until all is done.
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
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.measures.seconds import Seconds
from mae_lm_fairseq.study.checks import check, with_equal_cost_by_formula
from mae_lm_fairseq.study.looks import Look, new_looks
from mae_lm_fairseq.study.plan import Plan, PlannedMeasure, Train
from mae_lm_fairseq.study.rates import choose, needed_trainings
from mae_lm_fairseq.study.report import TABLE, Results, write_report
from mae_lm_fairseq.study.results import TRAINING_SECONDS, Training
from mae_lm_fairseq.study.training import Workspace, fingerprints, runs_of
from mae_lm_fairseq.training.runner import Run, read_result, run_all
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, retract
from mae_lm_fairseq.utils.files import make_output_directory, read_record, write_record
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.workers import available_cores

PLAN = "plan.json"
SPEED = "speed"
"""Directory of the study that measures the speed of the models, if the plan asks for equal seconds."""
TIMED_UPDATES = 25
"""Number of its updates."""
CONTEXT = 4
"""Lines of a plan before and after a change, which say of what model it is."""


def run_study(plan: Plan, out: Path, jobs: int = 1) -> dict[str, Any]:
    """Run, or resume, everything; write ``results.json`` and the report, and return the results.

    Args:
        jobs: number of runs at the same time.

    Raises:
        UserError: if a run fails.
        Interrupted: if the program receives SIGINT, SIGTERM or SIGHUP; what is finished is reported.
    """
    workspace = begin(plan, out, jobs)
    workspace.plan = at_equal_cost(workspace)
    try:
        complete(workspace, jobs, lambda run: collect(workspace))
    finally:
        results = collect(workspace, is_reported=True)
        write_report(out, results)
    return results


def at_equal_cost(workspace: Workspace) -> Plan:
    """Return the plan with the numbers of updates that ``equal`` of ``[train]`` asks for.

    Raises:
        UserError: if a run that measures speed fails.
    """
    plan = workspace.plan
    if plan.train.equal == "updates":
        return plan
    if plan.train.equal == "seconds":
        return plan.with_equal_cost(_seconds_of_update(workspace))
    return with_equal_cost_by_formula(plan, check(plan, needs_files=False))


def _seconds_of_update(workspace: Workspace) -> dict[str, float]:
    """Return the seconds of an update of each model that is trained, by name.

    They are the results of a study of few updates, in the directory ``speed``: a study that is resumed finds them.
    """
    models = []
    for model in workspace.plan.models:
        options = {**model.options, "log-interval": 1}
        if not model.random:
            models.append(replace(model, options=options, seeds=1, learning_rates=model.learning_rates[:1]))
    planned = PlannedMeasure(Seconds.kind, "last", Seconds())
    plan = replace(workspace.plan, train=Train(TIMED_UPDATES), models=tuple(models), measures=(planned,), rates=None)
    timed = Workspace(plan, workspace.out / SPEED, workspace.threads, workspace.files)
    complete(timed)  # one after the other, as runs at the same time slow each other down
    seconds = {}
    for training in needed_trainings(timed):
        [values] = timed.values(training, planned).values()
        seconds[training.model.name] = values["per_update"]
    return seconds


def complete(workspace: Workspace, jobs: int = 1, after_run: Callable[[Run], Any] = lambda run: None) -> None:
    """Run everything that a plan lacks, and print what is measured.

    Args:
        after_run: called after each run, once what it measured is printed.

    Raises:
        UserError: if a run fails.
    """

    def finished(run: Run) -> None:
        print_measured(workspace, run)
        after_run(run)

    while True:  # results decide what else is needed: the rule chooses a learning rate, or halves it
        runs = needed_runs(workspace)
        if all(run.result.exists() for run in runs):
            return
        run_all(runs, jobs, workspace.threads, _environments(), finished)


def needed_runs(workspace: Workspace) -> list[Run]:
    """Return the runs that are known to be needed, finished ones included."""
    runs = []
    for training in needed_trainings(workspace):
        runs += runs_of(workspace, training)
    return runs


def print_measured(workspace: Workspace, run: Run) -> None:
    """Print what a run has measured, a line for each measure."""
    names = {}
    for model in workspace.plan.models:
        for planned in workspace.plan.measures:
            names[workspace.key(planned, model)] = planned.name

    for key, values in read_result(run)["measures"].items():
        print(f"{run.name}: {names[key]}: {_in_one_line(values)}", flush=True)


def _in_one_line(values: Mapping[str, Any]) -> str:
    """Return the values that are defined, those by layer at the last one."""
    shown = []
    for name, value in values.items():
        number = value[-1] if isinstance(value, list) else value
        if number is not None:
            shown.append(f"{name} {number:.4g}")
    return ", ".join(shown)


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
        share = available_cores() // jobs
        threads = min(share, torch.get_num_threads())  # at most OMP_NUM_THREADS
        history = History(max(1, threads), versions=[], looks=[])

    files = fingerprints(plan)
    today = str(date.today())
    version = {"date": today, "plan": plan.document.text, "files": files}
    if _is_new(version, history.versions):
        history = history._replace(versions=[*history.versions, version])
        write_record(path, history._asdict())
    return Workspace(plan, out, history.threads, files)


def _is_new(version: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a version of a plan differs from the latest one in more than its date."""
    if not versions:
        return True
    latest = versions[-1]
    if latest["plan"] != version["plan"]:
        return True
    return not latest["files"].items() <= version["files"].items()  # earlier versions did not list the files of code


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
    """Return date and lines of each change of a plan: those that were removed and added, and some around them.

    Files count as lines.
    """

    def lines(version: Mapping[str, Any]) -> list[str]:
        files = [f"sha256 of {path}: {fingerprint[:10]}" for path, fingerprint in version["files"].items()]
        return files + version["plan"].splitlines()

    changed = []
    for before, after in pairwise(versions):
        differing = unified_diff(lines(before), lines(after), n=CONTEXT, lineterm="")
        stated = []
        for line in islice(differing, 2, None):  # after the names of the versions, which are empty
            text = line[1:]
            is_place = line.startswith("@")
            if text.strip() and not is_place and not text.startswith("#"):
                stated.append(line)
        if not all(line.startswith(" ") for line in stated):
            changed.append({"date": after["date"], "lines": stated})
    return changed


def collect(workspace: Workspace, is_reported: bool = False) -> dict[str, Any]:
    """Write ``results.json`` with everything of the plan that is finished, and return its content.

    The report of earlier results is removed.

    Args:
        is_reported: whether the results are to be reported, which is a look at them.
    """
    out = workspace.out
    history = read_history(out / PLAN)
    content = _content(workspace, history)
    if is_reported:
        content["looks"] = _record_looks(workspace, history, content)

    json.dumps(content, allow_nan=False)  # other programs could not read NaN
    retract(out, REPORT, TABLE)  # which would be those of other results
    write_record(out / RESULTS, content, indent=None)
    return content


def _content(workspace: Workspace, history: History) -> dict[str, Any]:
    """Return the content of ``results.json``, with the looks before this one."""
    plan = workspace.plan
    rows = [row_of(workspace, training) for training in needed_trainings(workspace)]
    return {
        "title": plan.title,
        "plan": plan.document.text,
        "files": dict(workspace.files),
        "threads": workspace.threads,
        "changes": changes(history.versions),
        "looks": history.looks,
        "rates": {model.name: vars(choose(workspace, model)) for model in plan.models},
        "runs": [row for row in rows if row],
    }


def _record_looks(workspace: Workspace, history: History, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Record the new looks at results in ``plan.json``, and return all looks."""
    tested = Results(content).tested()
    new = new_looks(tested, workspace.plan, history.looks, str(date.today()))
    if not new:
        return history.looks
    looks = [*history.looks, *new]
    write_record(workspace.out / PLAN, history._replace(looks=looks)._asdict())
    return looks


def row_of(workspace: Workspace, training: Training) -> dict[str, Any]:
    """Return the results of a training; empty if nothing is finished."""
    checkpoints = workspace.plan.checkpoints_of(training.model)
    records = [record for updates in checkpoints for record in training.records(updates)]
    if not records:
        return {}
    results = [record["result"] for record in records]
    measured = {}
    for planned in workspace.plan.measures:
        values = workspace.values(training, planned)
        if values:
            measured[planned.name] = values
    commands = [_plain_command(record["command"]) for record in records if record["command"]]
    commits = {str(result["commit"]) for result in results}
    machines = {result["machine"] for result in results}
    versions = set()
    for result in results:
        versions.add(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    seconds = math.fsum(record["seconds"] for record in records)
    measuring_seconds = math.fsum(result["seconds"] for result in results)
    # A record has the seconds of its last process only, if training was interrupted.
    of_all_processes = max(result.get(TRAINING_SECONDS, 0.0) for result in results)
    training_seconds = max(seconds - measuring_seconds, of_all_processes)
    return {
        "model": training.model.name,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
        "directory": training.folder.name,
        "commands": commands,
        "commits": sorted(commits),
        "machines": sorted(machines),
        "versions": sorted(versions),
        "seconds": {"training": round(training_seconds, 1), "measuring": round(measuring_seconds, 1)},
        "measures": _as_json(measured),
    }


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them: numbers of updates are text, and numbers that are not defined are None."""
    return json.loads(json.dumps(values), parse_constant=lambda constant: None)


def _plain_command(words: Sequence[str]) -> str:
    """Return a command without the paths of this installation."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return shlex.join(names.get(word, word) for word in words)


def _environments() -> list[dict[str, str]]:
    """Return the environment of the runs at the same time: each has a GPU of its own, as far as there are any."""
    if not torch.cuda.is_available():
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else range(torch.cuda.device_count())
    return [{"CUDA_VISIBLE_DEVICES": str(device)} for device in devices]
