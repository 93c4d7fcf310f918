"""The engine: trains and measures what a plan lacks, applies the rule for learning rates, and collects the results.

Every part of a study leaves a file of its own under ``OUT/runs`` and is skipped if that exists, so a study resumes
after any interruption, and a plan can be extended by seeds, models, measures, checkpoints and contrasts.
"""

import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.study.endpoints import ENDPOINTS, Values
from mae_lm_fairseq.study.measures import fingerprints
from mae_lm_fairseq.study.plan import Measure, Model, Plan, without_defaults
from mae_lm_fairseq.study.report import write_report
from mae_lm_fairseq.study.results import Training, all_results, by_checkpoint, measure, measures_at
from mae_lm_fairseq.study.training import training_runs
from mae_lm_fairseq.training.runner import Run, read_record, run_all
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import make_output_directory, read_json, write_json, write_text

PLAN, RESULTS = "plan.json", "results.json"
MEASURING_WEIGHT = 0.02
"""Estimated duration of measuring a checkpoint, relative to a whole training."""


@dataclass(frozen=True)
class Study:
    """A plan and where it is run.

    Attributes:
        plan: the plan.
        out: output directory.
        jobs: number of runs at the same time.
    """

    plan: Plan
    out: Path
    jobs: int = 1

    def run(self) -> dict[str, Any]:
        """Run, or resume, everything; write ``results.json`` and the report, and return the results.

        Raises:
            UserError: if a run fails, or the directory has results of a plan that was not only extended.
            Interrupted: if the program receives SIGINT, SIGTERM or SIGHUP; what is finished is reported.
        """
        threads = reserve(self.plan, self.out, self.jobs)
        try:
            while runs := self._missing_runs():
                run_all(runs, self.jobs, threads, _environments(), self._print_and_collect)
        finally:
            results = collect(self.plan, self.out)
            write_report(self.out, results)
        return results

    def _missing_runs(self) -> list[Run]:
        """Return the runs that have no result yet, of all trainings that are known to be needed; empty at the end."""
        runs = [run for training in needed(self.plan, self.out) for run in runs_of(self.plan, training)]
        return runs if any(not run.result.exists() for run in runs) else []

    def _print_and_collect(self, run: Run) -> None:
        after = f", after {run.updates[1]:,} updates" if run.updates else ""
        for name, values in read_record(run)["result"]["measures"].items():
            print(f"{run.name}{after}: {name}: {_in_short(values)}", flush=True)
        collect(self.plan, self.out)


def reserve(plan: Plan, out: Path, jobs: int) -> int:
    """Record the plan in the output directory, and return the number of threads of each run.

    That number is chosen when the study begins, because results depend on it in their last digits. What is added to the
    plan later is recorded with its date, for the report, as is a learning rate that was removed, because it diverged.

    Raises:
        UserError: if the directory cannot be written, or has results of a plan of which something was changed or
            removed; further seeds, models, measures, checkpoints and contrasts that are not primary can be added,
            measures without results changed, and learning rates removed that no training has finished with.
    """
    make_output_directory(out)
    path, described = out / PLAN, json.loads(json.dumps(describe(plan)))
    has_begun = bool(all_results(out)) or any(out.glob("runs/*/*/*.pt"))
    if has_begun and not path.exists():
        raise UserError(f"{out} has runs but no {PLAN}, which says what they are; choose another --out")
    threads, extended, changed, added = max(1, (os.cpu_count() or 1) // jobs), [], [], []
    if has_begun:
        threads, extended, (changed, added) = read_json(
            path,
            lambda old: (int(old["threads"]), [*old["extended"]], _changes(old["plan"], described, plan, out)),
            "restore it, or choose another --out",
        )
    if changed:
        raise UserError(
            f"{out} has results of another plan; changed, removed, or not to be added: {', '.join(changed)}. Restore "
            "the plan, or choose another --out; further seeds, models, measures, checkpoints and contrasts that are "
            "not primary can be added, measures without results changed, and learning rates removed that no training "
            "has finished with"
        )
    extended += [f"{date.today()}: {', '.join(added)}"] if added else []
    write_json(path, {"threads": threads, "extended": extended, "plan": described})
    return threads


def describe(plan: Plan) -> dict[str, Any]:
    """Return what results depend on, and the names of other contrasts, by name, as JSON-serialisable data."""
    train = without_defaults(plan.train)
    return {
        "files": fingerprints(plan.data, [*(one.options for one in plan.measures), *plan.models]),
        "train": {name: value for name, value in train.items() if name != "checkpoints"},
        "checkpoints": {str(updates): True for updates in plan.checkpoints},
        "options": dict(plan.options),
        "rates": without_defaults(plan.rates) if plan.rates else {},
        **{f"model {one.name}": without_defaults(one) | {"seeds": [*one.all_seeds]} for one in plan.models},
        **{
            f"measure {one.name}": {"kind": one.options.kind, "at": one.at} | without_defaults(one.options)
            for one in plan.measures
        },
        "primary contrasts": {one.name: without_defaults(one) for one in plan.contrasts if one.primary},
        "contrasts": {one.name: True for one in plan.contrasts if not one.primary},
    }


def _changes(before: dict[str, Any], now: dict[str, Any], plan: Plan, out: Path) -> tuple[list[str], list[str]]:
    """Return the names of what was changed or removed, and of what was added or given up as a study allows it."""
    free, removed = _unmeasured(before, out), before.keys() - now.keys()
    of_free = {value for name in free for value in before[name].values() if isinstance(value, str)}
    changed, added = [*(removed - free)], [name for name in now if name not in before]
    added += [f"{name}: removed before it was measured" for name in removed & free]
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        for key in sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
            is_new = name in free or (name in ("files", "checkpoints", "contrasts") and key not in old)
            rates = old.get(key, []), new.get(key, [])
            is_rates = key == "learning_rates" and name.startswith("model ")
            if is_rates and (given_up := _given_up(name, *rates, plan, out)):
                added.append(f"{name}: without learning rate {', '.join(map(str, given_up))}")
            elif is_new or _is_longer(key, old.get(key), new.get(key)):
                added.append(f"{name}: {key}")
            elif key in new or not (name == "contrasts" or (name == "files" and key in of_free)):
                changed.append(f"{name}: {key}")
    return sorted(changed), sorted(added)


def _is_longer(key: str, old: Any, new: Any) -> bool:
    """Return whether seeds were appended to those of a model, or checkpoints added to those of a measure."""
    if key not in ("seeds", "at") or not isinstance(old, list) or not isinstance(new, list):
        return False
    # The rule for learning rates takes the first seeds.
    return new[: len(old)] == old if key == "seeds" else {*old} <= {*new}


def _unmeasured(described: dict[str, Any], out: Path) -> set[str]:
    """Return the measures of :func:`describe` that have no value yet, nor a directory of an interrupted fine-tuning."""
    measured = {name for result in all_results(out) for name in result["measures"]}
    begun = [path.name for path in out.glob("runs/*/*")]
    names = {key: key.removeprefix("measure ") for key in described if key.startswith("measure ")}
    return {
        key
        for key, name in names.items()
        if name not in measured and not any(one.startswith(f"{name}-") for one in begun)
    }


def _given_up(name: str, old: list[float], new: list[float], plan: Plan, out: Path) -> list[float]:
    """Return the removed learning rates of a model, if some are left and no training has finished with these."""
    removed = sorted({*old} - {*new})
    [model] = (model for model in plan.models if name == f"model {model.name}")
    trainings = [Training(model, rate, seed, out) for rate in removed for seed in model.all_seeds]
    has_finished = any(training.result(plan.train.updates).exists() for training in trainings)
    return removed if new and {*new} < {*old} and not has_finished else []


def needed(plan: Plan, out: Path) -> list[Training]:
    """Return the trainings that are known to be needed: of a model with several rates, first those of the rule's seeds.

    Seed by seed, so that every model has its first results early.
    """
    at_all_rates = [
        Training(model, rate, seed, out)
        for model in plan.models
        for rate in model.learning_rates
        for seed in model.all_seeds
    ]
    trainings = [one for one in at_all_rates if plan.rates and one.seed in one.model.all_seeds[: plan.rates.seeds]]
    chosen = {model.name: choose(plan, model, out) for model in plan.models}
    for seed in sorted({seed for model in plan.models for seed in model.all_seeds}):
        for model in plan.models:
            if seed in model.all_seeds and chosen[model.name].is_known:
                trainings.append(Training(model, chosen[model.name].rate, seed, out))
    # Those of a rate that was left after damage with all seeds are reported, too.
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


def choose(plan: Plan, model: Model, out: Path) -> Choice:
    """Apply the rule for learning rates to a model."""
    rates, rule = model.learning_rates, plan.rates
    if not rates or rule is None:
        return Choice(*rates)
    first = model.all_seeds[: rule.seeds]

    def mean(value: str, endpoint: str, rate: float, seeds: Sequence[int]) -> float | None:
        """Return the mean of an endpoint over some seeds at a learning rate; None if one of them is missing."""
        measure, _, name = value.partition(".")
        runs = [by_checkpoint(plan, Training(model, rate, seed, out), measure) for seed in seeds]
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


def runs_of(plan: Plan, training: Training) -> list[Run]:
    """Return the runs of a training: to every checkpoint, and of measures that were added to the plan later."""
    runs = []
    for updates, run in training_runs(plan, training).items():
        runs.append(run)
        done = training.measured(updates)
        missing = [one for one in measures_at(plan, updates) if one.name not in done]
        if run.result.exists() and missing:
            runs.append(_measuring_run(plan, training, updates, missing, len(done)))
    return runs


def _measuring_run(plan: Plan, training: Training, updates: int, measures: Sequence[Measure], done: int) -> Run:
    return Run(
        f"{training.name}, after {updates:,} updates",
        (),
        training.folder / f"measures-{updates}-{done}.json",
        partial(measure, plan=plan, training=training, updates=updates, measures=measures),
        weight=MEASURING_WEIGHT * plan.train.updates,
    )


def collect(plan: Plan, out: Path) -> dict[str, Any]:
    """Write ``results.json`` with everything that is finished, and return its content."""
    rows = [row for training in needed(plan, out) if (row := _row(plan, training))]
    described = read_json(out / PLAN)
    content = {
        "title": plan.title,
        "plan": plan.document.text,
        "files": described["plan"]["files"],
        "threads": described["threads"],
        "extended": described["extended"],
        "rates": {model.name: vars(choose(plan, model, out)) for model in plan.models},
        "runs": rows,
    }
    write_text(out / RESULTS, json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n")
    return content


def _row(plan: Plan, training: Training) -> dict[str, Any]:
    """Return the results of a training; empty if nothing is finished."""
    records = [record for updates in plan.checkpoints for record in training.records(updates)]
    results = [record["result"] for record in records]
    values = {one.name: found for one in plan.measures if (found := by_checkpoint(plan, training, one.name))}
    measuring = math.fsum(result["seconds"] for result in results)
    return records and {
        "model": training.model.name,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
        "commands": [_portable(record["command"]) for record in records if record["command"]],
        "commits": sorted({str(result["commit"]) for result in results}),
        "machines": sorted({result["machine"] for result in results}),
        "versions": sorted({_listed(result["versions"]) for result in results if "versions" in result}),
        "seconds": {
            "training": round(math.fsum(record["seconds"] for record in records) - measuring, 1),
            "measuring": round(measuring, 1),
        },
        "measures": json.loads(json.dumps(values), parse_constant=lambda constant: None),
    }


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _portable(command: Sequence[str]) -> str:
    """Return a command without the paths of this machine's Python and package."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return shlex.join(names.get(word, word) for word in command)


def _in_short(values: dict[str, Any]) -> str:
    """Return values for a line of progress; of values by layer, the last layer's."""
    last = {name: value[-1] if isinstance(value, list) else value for name, value in values.items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in last.items() if value is not None)


def _environments() -> list[dict[str, str]]:
    """Return the environment of the runs at the same time: each has a GPU of its own, as far as there are any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": device} for device in devices if torch.cuda.is_available()] or [{}]
