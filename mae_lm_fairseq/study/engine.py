"""The engine: trains and measures what a plan lacks, and collects the results.

It runs what is known to be needed, looks at the results, which may make more runs needed, and so on until all is done.
Every part of a study leaves a file of its own under ``OUT/runs``, in a directory that is named by the key of what it
depends on, and is skipped if that exists. So a study resumes after any interruption, and a plan that was changed runs
what is new, and finds the rest.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.study.checks import check, with_equal_cost_by_formula
from mae_lm_fairseq.study.history import PLAN, History, Version, changes, read_history
from mae_lm_fairseq.study.looks import Look, new_looks
from mae_lm_fairseq.study.plan import Plan
from mae_lm_fairseq.study.rates import choose, needed_trainings
from mae_lm_fairseq.study.report import TABLE, write_report
from mae_lm_fairseq.study.results import Results
from mae_lm_fairseq.study.results_file import ResultsFile, TrainingResult
from mae_lm_fairseq.study.run_files import RunFile, Training, read_run_file
from mae_lm_fairseq.study.runs import Workspace, environments, fingerprints, runs_of
from mae_lm_fairseq.study.speed import measured_speeds
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, retract
from mae_lm_fairseq.utils.files import make_output_directory, write_record
from mae_lm_fairseq.utils.workers import available_cores


def run_study(plan: Plan, out: Path, jobs: int = 1) -> ResultsFile:
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
        return plan.with_equal_cost(measured_speeds(workspace))
    return with_equal_cost_by_formula(plan, check(plan, needs_files=False))


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
        run_all(runs, jobs, workspace.threads, environments(), finished)


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

    for key, values in read_run_file(run.result).result.measures.items():
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
        history = History(max(1, threads), versions=(), looks=())

    files = fingerprints(plan)
    version = Version(str(date.today()), plan.document.text, files)
    if not history.versions or version.differs_from(history.versions[-1]):
        replace(history, versions=(*history.versions, version)).write(path)
    return Workspace(plan, out, history.threads, files)


def collect(workspace: Workspace, is_reported: bool = False) -> ResultsFile:
    """Write ``results.json`` with everything of the plan that is finished, and return its content.

    The report of earlier results is removed.

    Args:
        is_reported: whether the results are to be reported, which is a look at them.
    """
    out = workspace.out
    history = read_history(out / PLAN)
    file = _results_file(workspace, history)
    if is_reported:
        file = replace(file, looks=_record_looks(workspace, history, file))

    content = file.to_json()
    json.dumps(content, allow_nan=False)  # other programs could not read NaN
    retract(out, REPORT, TABLE)  # which would be those of other results
    write_record(out / RESULTS, content, indent=None)
    return file


def _results_file(workspace: Workspace, history: History) -> ResultsFile:
    """Return the content of ``results.json``, with the looks before this one."""
    plan = workspace.plan
    results = [collect_training(workspace, training) for training in needed_trainings(workspace)]
    return ResultsFile(
        title=plan.title,
        plan=plan.document.text,
        files=workspace.files,
        threads=workspace.threads,
        changes=tuple(changes(history.versions)),
        looks=history.looks,
        rates={model.name: choose(workspace, model) for model in plan.models},
        runs=tuple(result for result in results if result is not None),
        costs=plan.costs,
    )


def _record_looks(workspace: Workspace, history: History, file: ResultsFile) -> tuple[Look, ...]:
    """Record the new looks at results in ``plan.json``, and return all looks."""
    new = new_looks(Results(file).tested(), workspace.plan, history.looks, str(date.today()))
    looks = (*history.looks, *new)
    if new:
        replace(history, looks=looks).write(workspace.out / PLAN)
    return looks


def collect_training(workspace: Workspace, training: Training) -> TrainingResult | None:
    """Return the results of a training; None if nothing is finished."""
    checkpoints = workspace.plan.checkpoints_of(training.model)
    run_files = [run_file for updates in checkpoints for run_file in training.run_files(updates)]
    if not run_files:
        return None
    measured = {}
    for planned in workspace.plan.measures:
        values = workspace.values(training, planned)
        if values:
            measured[planned.name] = values
    results = [run_file.result for run_file in run_files]
    versions = [", ".join(map(" ".join, result.versions.items())) for result in results]
    return TrainingResult(
        model=training.model.name,
        learning_rate=training.learning_rate,
        seed=training.seed,
        directory=training.folder.name,
        commands=tuple(_plain_command(run_file.command) for run_file in run_files if run_file.command),
        commits=_different(str(result.commit) for result in results),
        machines=_different(result.machine for result in results),
        versions=_different(versions),
        seconds=_seconds(run_files),
        measures=_as_json(measured),
    )


def _different(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(texts)))


def _seconds(run_files: Sequence[RunFile]) -> dict[str, float]:
    """Return the durations of training and of measuring."""
    measuring = math.fsum(run_file.result.seconds for run_file in run_files)
    training = math.fsum(run_file.seconds for run_file in run_files) - measuring
    # A file has the seconds of its last process only, if training was interrupted.
    of_all_processes = [run_file.result.training_seconds or 0.0 for run_file in run_files]
    return {"training": round(max(training, *of_all_processes), 1), "measuring": round(measuring, 1)}


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them: numbers of updates are text, and numbers that are not defined are None."""
    return json.loads(json.dumps(values), parse_constant=lambda constant: None)


def _plain_command(words: Sequence[str]) -> str:
    """Return a command without the paths of this installation."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return shlex.join(names.get(word, word) for word in words)
