"""Trainings of a study: one model, learning rate and seed, from checkpoint to checkpoint.

A training is a chain of ``fairseq-train`` runs, each of which ends at a checkpoint of the plan and resumes from the one
before. So checkpoints can be at any number of updates, and each is measured while training goes on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.study.plan import Model, Plan, PlannedMeasure, without_defaults
from mae_lm_fairseq.study.results import (
    ToMeasure,
    Training,
    keep_and_measure,
    keep_untrained_and_measure,
    measure_checkpoint,
    remove_checkpoints,
)
from mae_lm_fairseq.training.command import (
    arguments,
    as_options,
    split_global_batch,
    train_command,
    unattended_settings,
)
from mae_lm_fairseq.training.keys import key_of, run_key
from mae_lm_fairseq.training.runner import Run, keep_everything
from mae_lm_fairseq.training.settings import recipe, settings
from mae_lm_fairseq.training.user_directory import OPTION, code_in_keys, user_directory
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256

TIME_OF_A_MEASURE = 0.02
"""Estimated duration of a measure of a checkpoint, relative to a whole training."""
SAVED = 20
"""Number of times that a training is saved for resuming."""
PRECISIONS = ("fp16", "bf16", "amp", "autocast", "memory-efficient-fp16", "memory-efficient-bf16")
RESERVED_OPTIONS = {
    *("arch", "seed", "max-update", "warmup-updates", "total-num-update", "finetune-from-model"),
    *("save-dir", "restore-file", "user-dir", "log-format", "no-save", "save-interval-updates"),
    *("keep-interval-updates", "cpu", "distributed-world-size", "no-save-optimizer-state"),
    *("reset-optimizer", "reset-lr-scheduler", "reset-dataloader"),
    # They write outside of the output directory, start a program, or connect to a server.
    *("log-file", "tensorboard-logdir", "save-predictions", "plasma-path", "use-plasma-view"),
    *("aim-repo", "aim-run-hash", "wandb-project", "azureml-logging"),
    *("checkpoint-suffix", "distributed-init-method", "distributed-port", "distributed-backend"),
}
"""Options of fairseq-train that a study decides on."""


def options_of(plan: Plan, model: Model) -> dict[str, Any]:
    """Return the options of fairseq-train for a model, without those of one training.

    They are the recipe's, then the plan's, then the model's. Schedules have the length of the whole training, not of
    the run until a checkpoint. With another schedule than the recipe's, the plan states its further options.

    Raises:
        UserError: if the recipe's number of sequences cannot be divided into batches of this size.
    """
    stated = {**plan.options, **model.options}
    options = _schedule(plan, model, stated)
    longest_interval = max(1, plan.train.updates // 4)
    options["log-interval"] = min(options["log-interval"], longest_interval)
    options |= stated
    if not {"update-freq", "max-tokens"} & stated.keys():
        sequences = recipe(model.arch)["sequences"].value
        is_batch_smaller = "batch-size" not in stated
        size, accumulated = split_global_batch(sequences, 1, int(options["batch-size"]), smaller=is_batch_smaller)
        options |= {"batch-size": size, "update-freq": accumulated}
    if torch.cuda.is_available() and stated.keys().isdisjoint(PRECISIONS):
        options["fp16"] = True
    return options | as_options(unattended_settings())


def _schedule(plan: Plan, model: Model, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the recipe, with schedules of the length of the training.

    Args:
        stated: options that the plan states; another learning rate schedule takes the place of the recipe's.
    """
    chosen = settings(model.arch)
    of_recipe = chosen["lr_scheduler"]["_name"]
    scheduler = stated.get("lr-scheduler", of_recipe)
    if scheduler != of_recipe:
        del chosen["lr_scheduler"]
    options = as_options(chosen)
    if scheduler in ("polynomial_decay", "cosine", "inverse_sqrt", "fixed"):
        options["warmup-updates"] = plan.train.warmup
    if scheduler == "polynomial_decay":
        options["total-num-update"] = plan.train.updates
    if scheduler == "cosine":
        options["lr-period-updates"] = plan.train.updates - plan.train.warmup
    if stated.get("mask-prob-end"):
        options["mask-prob-updates"] = plan.train.updates
    return options


def train_options(plan: Plan, training: Training, updates: int, save: Path) -> dict[str, Any]:
    """Return the options of fairseq-train that train until a number of updates."""
    options = options_of(plan, training.model) | {"seed": training.seed, "max-update": updates}
    if training.learning_rate is not None:
        options["lr"] = training.learning_rate
    if training.model.start is not None:
        options.setdefault("finetune-from-model", training.model.start)
    return options | {
        "save-dir": save,
        "save-interval-updates": max(1, plan.train.updates // SAVED),
        "keep-interval-updates": 1,
        "no-epoch-checkpoints": True,
        "disable-validation": True,
    }


def fingerprints(plan: Plan) -> dict[str, str]:
    """Return hashes of the content of all files that a plan names, by path, and that of the directory of the user.

    Raises:
        UserError: if a file does not exist or cannot be read.
    """
    hashes = {}
    measures = [planned.measure for planned in plan.measures]
    for item in (plan.data, *measures, *plan.models):
        for field in fields(item):
            path = getattr(item, field.name)
            if not isinstance(path, Path):
                continue
            if not path.exists():
                raise UserError(f"{path} does not exist")
            hashes[str(path)] = directory_sha256(path)
    code = user_directory()
    if code is not None:
        hashes[f"{OPTION} {code.path}"] = code.sha256
    return hashes


class Workspace:
    """Where a plan is run: finds trainings and measurements by the keys of what they depend on.

    Args:
        threads: number of threads of each training.
        files: the fingerprints of the plan's files, see :func:`fingerprints`.
    """

    def __init__(self, plan: Plan, out: Path, threads: int, files: Mapping[str, str]):
        self.plan, self.out, self.threads, self.files = plan, out, threads, files
        self._trainings: dict[tuple, Training] = {}

    def training(self, model: Model, rate: float | None, seed: int) -> Training:
        """Return a training, in its directory ``MODEL-seedN-KEY``."""
        known_by = (model.name, rate, seed)
        if known_by not in self._trainings:
            training = Training(model, rate, seed)
            name = f"{model.directory}-seed{seed}-{self._key_of_training(training)}"
            self._trainings[known_by] = replace(training, folder=self.out / "runs" / name)
        return self._trainings[known_by]

    def trainings(self, model: Model, rate: float | None, seeds: Iterable[int]) -> list[Training]:
        """Return the trainings of some seeds."""
        return [self.training(model, rate, seed) for seed in seeds]

    def _key_of_training(self, training: Training) -> str:
        options = train_options(self.plan, training, self.plan.train.updates, Path())
        inputs = {"data": self.files[str(self.plan.data.data_bin)]}
        if training.model.start is not None:
            inputs["finetune-from-model"] = self.files[str(training.model.start)]
        if training.model.random:
            inputs["weights"] = "random"
        return run_key(options, (), self.threads, inputs)

    def key(self, planned: PlannedMeasure, model: Model) -> str:
        """Return the key of a measure of a model: its kind, options, files and code, and where ``[MASK]`` is."""
        measure = planned.measure
        content = {"kind": measure.kind, **without_defaults(measure)}
        for name, path in measure.files(self.plan.data).items():
            content[name] = self.files[str(path)]
        return key_of({**content, "masks": model.masks, **code_in_keys()})

    def to_measure(self, training: Training, updates: int) -> ToMeasure:
        """Return what the plan measures of a training after a number of updates."""
        by_key = {}
        for planned in self.plan.measures:
            if updates in planned.checkpoints(self.plan.checkpoints):
                by_key[self.key(planned, training.model)] = planned
        return ToMeasure(training, updates, self.plan.data, by_key)

    def values(self, training: Training, planned: PlannedMeasure) -> dict[int, dict[str, Any]]:
        """Return the values of a measure of a training, by number of updates."""
        key = self.key(planned, training.model)
        values = {}
        for updates in planned.checkpoints(self.plan.checkpoints):
            by_key = training.values_by_key(updates)
            if key in by_key:
                values[updates] = by_key[key]
        return values


def runs_of(workspace: Workspace, training: Training) -> list[Run]:
    """Return the runs of a training: to every checkpoint, and of measures that a checkpoint lacks."""
    runs = []
    for updates, run in training_runs(workspace, training).items():
        runs.append(run)
        lacking = workspace.to_measure(training, updates).lacking()
        if run.result.exists() and lacking.measures:
            runs.append(_run_that_measures(workspace, lacking))
    return runs


def training_runs(workspace: Workspace, training: Training) -> dict[int, Run]:
    """Return the runs that train, and then measure, by the number of updates at their end.

    A checkpoint that was added to the plan after training had gone further is trained again from the first update, in a
    directory for resuming of its own.
    """
    plan = workspace.plan
    if training.model.random:
        return {plan.train.updates: _run_without_training(workspace, training)}

    latest = _latest_update(plan, training)
    runs = {}
    before = None
    for updates in plan.checkpoints:
        if updates == 0:
            runs[0] = _run_of_start(workspace, training)
            continue
        is_late = updates < latest and not training.result(updates).exists()
        if is_late:
            before = None
        before = _run_to(workspace, training, updates, before, is_late)
        runs[updates] = before
    return runs


def _latest_update(plan: Plan, training: Training) -> int:
    """Return how far a training has gone: to a checkpoint of the plan, or to one that is saved for resuming."""
    reached = [updates for updates in plan.checkpoints if training.result(updates).exists()]
    for path in training.folder.glob("checkpoints/checkpoint_*_*.pt"):
        _, _, updates = path.stem.rpartition("_")  # checkpoint_EPOCH_UPDATES
        reached.append(int(updates))
    return max(reached, default=0)


def _run_to(workspace: Workspace, training: Training, updates: int, before: Run | None, is_late: bool) -> Run:
    """Return the run that trains to a checkpoint, and measures it.

    Args:
        before: the run whose last update it resumes from; None to begin with the first update.
        is_late: whether the training has gone further, so that it needs a directory for resuming of its own.
    """
    plan = workspace.plan
    save = training.folder / (f"checkpoints-{updates}" if is_late else "checkpoints")
    is_last_of_directory = is_late or updates == plan.train.updates
    first = before.updates[1] if before else 0
    to_measure = workspace.to_measure(training, updates)
    time_to_measure = _time_to_measure(plan, to_measure)
    weight = updates - first + time_to_measure
    return Run(
        name=training.name,
        command=train_command(plan.data.data_bin, train_options(plan, training, updates, save)),
        result=training.result(updates),
        read_result=partial(keep_and_measure, to_measure=to_measure, save=save),
        updates=(first, updates),
        clean_up=partial(remove_checkpoints, folder=save) if is_last_of_directory else keep_everything,
        after=[before] if before else [],
        weight=weight,
        evaluation=time_to_measure / weight,
    )


def _run_of_start(workspace: Workspace, training: Training) -> Run:
    """Return the run that measures the start of a training."""
    measure = partial(measure_checkpoint, to_measure=workspace.to_measure(training, 0))
    return Run(training.name, (), training.result(0), measure, weight=0)


def _run_without_training(workspace: Workspace, training: Training) -> Run:
    """Return the run that measures a model with random weights, where others are measured after the last update."""
    plan = workspace.plan
    last = plan.train.updates
    save = training.folder / "checkpoints"
    words = arguments(plan.data.data_bin, train_options(plan, training, last, save))
    to_measure = workspace.to_measure(training, last)
    return Run(
        name=training.name,
        command=(),
        result=training.result(last),
        read_result=partial(keep_untrained_and_measure, to_measure=to_measure, words=words, save=save),
        clean_up=partial(remove_checkpoints, folder=save),
        weight=_time_to_measure(plan, to_measure),
    )


def _run_that_measures(workspace: Workspace, to_measure: ToMeasure) -> Run:
    """Return a run of measures alone, of a checkpoint that was measured before."""
    training = to_measure.training
    updates = to_measure.updates
    key = key_of([*to_measure.measures])
    return Run(
        name=f"{training.name}, after {updates:,} updates",
        command=(),
        result=training.folder / f"measures-{updates}-{key}.json",
        read_result=partial(measure_checkpoint, to_measure=to_measure),
        weight=_time_to_measure(workspace.plan, to_measure),
    )


def _time_to_measure(plan: Plan, to_measure: ToMeasure) -> float:
    """Return the estimated duration of some measures, in updates."""
    return TIME_OF_A_MEASURE * plan.train.updates * len(to_measure.measures)
