"""Trainings of a study: one model, learning rate and seed, and the runs that train and measure it.

A training is one ``fairseq-train`` run, which keeps the model at the checkpoints of the plan (``--keep-at``). Runs that
measure wait for the files of the models.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from mae_lm_fairseq.study.plan import Model, Plan, PlannedMeasure, without_defaults
from mae_lm_fairseq.study.run_files import (
    Measurement,
    Training,
    measure_checkpoint,
    read_training,
    remove_checkpoints,
    write_random,
)
from mae_lm_fairseq.trained.huggingface.from_scratch import encoder_options
from mae_lm_fairseq.training.command import (
    arguments,
    as_options,
    split_global_batch,
    train_command,
    unattended_settings,
)
from mae_lm_fairseq.training.keys import key_of, run_key
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.settings import recipe, settings
from mae_lm_fairseq.training.user_directory import code_hashes, code_in_keys
from mae_lm_fairseq.utils.files import directory_sha256
from mae_lm_fairseq.utils.typed import Key

TIME_OF_A_MEASURE = 0.02
"""Estimated duration of a measure of a checkpoint, relative to a whole training."""
SAVED = 20
"""Number of times that a training is saved for resuming."""
PRECISIONS = ("fp16", "bf16", "amp", "autocast", "memory-efficient-fp16", "memory-efficient-bf16")
RESERVED_OPTIONS = {
    *("arch", "seed", "max-update", "warmup-updates", "total-num-update", "finetune-from-model"),
    *("save-dir", "restore-file", "user-dir", "log-format", "no-save", "save-interval-updates"),
    *("keep-interval-updates", "cpu", "distributed-world-size", "no-save-optimizer-state"),
    *("reset-optimizer", "reset-lr-scheduler", "reset-dataloader", "keep-at", "keep-dir"),
    # They write outside of the output directory, start a program, or connect to a server.
    *("log-file", "tensorboard-logdir", "save-predictions", "plasma-path", "use-plasma-view"),
    *("aim-repo", "aim-run-hash", "wandb-project", "azureml-logging"),
    *("checkpoint-suffix", "distributed-init-method", "distributed-port", "distributed-backend"),
}
"""Options of fairseq-train that a study decides on."""


def options_of(plan: Plan, model: Model) -> dict[str, Any]:
    """Return the options of fairseq-train for a model, without those of one training.

    They are the recipe's, then the plan's, then the model's. Schedules have the length of the training. With another
    schedule than the recipe's, the plan states its further options.

    Raises:
        UserError: if the recipe's number of sequences cannot be divided into batches of this size.
    """
    stated = {**plan.options, **model.options}
    options = _schedule(plan, model, stated)
    longest_interval = max(1, plan.updates_of(model) // 4)
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
    if model.encoder is not None:
        chosen["model"] |= encoder_options(model.encoder, model.arch, plan.data.data_bin)
    of_recipe = chosen["lr_scheduler"]["_name"]
    scheduler = stated.get("lr-scheduler", of_recipe)
    if scheduler != of_recipe:
        del chosen["lr_scheduler"]
    options = as_options(chosen)
    updates = plan.updates_of(model)
    warmup = plan.scaled(plan.train.warmup, model)
    if updates != plan.train.updates:
        warmup = min(warmup, updates - 1)  # of few updates, the rounded warm-up can be all
    if scheduler in ("polynomial_decay", "cosine", "inverse_sqrt", "fixed"):
        options["warmup-updates"] = warmup
    if scheduler == "polynomial_decay":
        options["total-num-update"] = updates
    if scheduler == "cosine":
        options["lr-period-updates"] = updates - warmup
    if stated.get("mask-prob-end"):
        options["mask-prob-updates"] = updates
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
        "save-interval-updates": max(1, plan.updates_of(training.model) // SAVED),
        "keep-interval-updates": 1,
        "no-epoch-checkpoints": True,
        "disable-validation": True,
    }


def files_of(plan: Plan) -> dict[Key, Path]:
    """Return the files and directories that a plan names, by key.

    Raises:
        UserError: if one does not exist; names its key.
    """
    tables = {("data",): plan.data}
    tables |= {("measure", number): planned.measure for number, planned in enumerate(plan.measures)}
    tables |= {("model", number): model for number, model in enumerate(plan.models)}
    paths = {}
    for table, item in tables.items():
        for field in fields(item):
            path = getattr(item, field.name)
            if not isinstance(path, Path):
                continue
            key = (*table, field.name)
            if not path.exists():
                raise plan.document.error(key, f"{path} does not exist; paths are relative to the current directory")
            paths[key] = path
    return paths


def fingerprints(plan: Plan) -> dict[str, str]:
    """Return hashes of the content of all files that a plan names, by path, and that of the directory of the user.

    Raises:
        UserError: if a file does not exist or cannot be read.
    """
    hashes = {str(path): directory_sha256(path) for path in files_of(plan).values()}
    return hashes | code_hashes()


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
        options = train_options(self.plan, training, self.plan.updates_of(training.model), Path())
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

    def measurement(self, training: Training, updates: int) -> Measurement:
        """Return what the plan measures of a training after a number of updates."""
        by_key = {}
        for planned in self.plan.measures:
            if updates in self.plan.checkpoints_of(training.model, planned):
                by_key[self.key(planned, training.model)] = planned
        log = training.result(updates).with_suffix(".log")
        if not log.exists():  # no run ends there
            log = training.result(self.plan.updates_of(training.model)).with_suffix(".log")
        checkpoints = self.plan.checkpoints_of(training.model)
        before = max((number for number in checkpoints if number < updates), default=0)
        timed = range(before + 1, updates + 1)
        return Measurement(training, updates, self.plan.data, log, timed, by_key)

    def values(self, training: Training, planned: PlannedMeasure) -> dict[int, dict[str, Any]]:
        """Return the values of a measure of a training, by the checkpoints of the plan."""
        key = self.key(planned, training.model)
        values = {}
        for updates in planned.checkpoints(self.plan.checkpoints):
            own_updates = self.plan.scaled(updates, training.model)
            by_key = training.values_by_key(own_updates)
            if key in by_key:
                values[updates] = by_key[key]
        return values


def runs_of(workspace: Workspace, training: Training) -> list[Run]:
    """Return the runs of a training: those that train, and those that measure a model as soon as it is there."""
    return [*training_runs(workspace, training), *measuring_runs(workspace, training)]


def training_runs(workspace: Workspace, training: Training) -> list[Run]:
    """Return the runs that train: to the last update, and again to each checkpoint that was added too late.

    Such a checkpoint was added to the plan after training had gone further. It is trained from the first update, in a
    directory for resuming of its own.
    """
    plan = workspace.plan
    if training.model.random:
        return [_run_without_training(workspace, training)]

    reached = _reached_update(plan, training)
    runs = []
    kept = []
    for updates in filter(None, plan.checkpoints_of(training.model)):  # after 0, the start is measured
        of_its_own = training.folder / f"checkpoints-{updates}"
        can_be_kept = updates >= reached or training.checkpoint(updates).exists()
        is_late = not can_be_kept and not training.run_files(updates)
        if is_late or of_its_own.exists():
            runs.append(_run_to(workspace, training, updates, [updates], of_its_own))
        elif can_be_kept:
            kept.append(updates)
    last = plan.updates_of(training.model)
    runs.append(_run_to(workspace, training, last, kept, training.folder / "checkpoints"))
    return runs


def _reached_update(plan: Plan, training: Training) -> int:
    """Return how far a training has gone: to its end, or to what is saved for resuming."""
    last = plan.updates_of(training.model)
    if training.result(last).exists():
        return last
    saved = training.folder.glob("checkpoints/checkpoint*.pt")
    return max(map(saved_updates, saved), default=0)


def _run_to(workspace: Workspace, training: Training, updates: int, kept: Sequence[int], save: Path) -> Run:
    """Return the run that trains from the first update, or from what is saved for resuming.

    Args:
        updates: the number of updates at its end.
        kept: numbers of updates after which the model is kept.
        save: directory for resuming.
    """
    plan = workspace.plan
    options = train_options(plan, training, updates, save)
    options |= {"keep-at": ",".join(map(str, kept)), "keep-dir": training.models}
    return Run(
        name=training.name,
        command=train_command(plan.data.data_bin, options),
        result=training.result(updates),
        read_result=partial(read_training, updates=updates, save=save),
        updates=updates,
        clean_up=partial(remove_checkpoints, folder=save),
        weight=updates,
        evaluation=0.0,
    )


def _run_without_training(workspace: Workspace, training: Training) -> Run:
    """Return the run that writes a model with random weights, which stands for one after the last update."""
    plan = workspace.plan
    last = plan.updates_of(training.model)
    words = arguments(plan.data.data_bin, train_options(plan, training, last, training.folder))
    write = partial(write_random, words=words, path=training.checkpoint(last))
    return Run(training.name, (), training.result(last), write, weight=0.0)


def measuring_runs(workspace: Workspace, training: Training) -> list[Run]:
    """Return the runs that measure: finished ones, and those of checkpoints that lack a measure or any result."""
    plan = workspace.plan
    runs = []
    checkpoints = plan.checkpoints_of(training.model)
    for updates in checkpoints[-1:] if training.model.random else checkpoints:
        measurement = workspace.measurement(training, updates)
        everything = _run_that_measures(workspace, measurement)
        if everything.result.exists():
            runs.append(everything)
        lacking = measurement.lacking()
        if lacking.measures or not training.run_files(updates):
            runs.append(_run_that_measures(workspace, lacking))
    return runs


def _run_that_measures(workspace: Workspace, measurement: Measurement) -> Run:
    """Return a run of measures, which waits for the model."""
    training = measurement.training
    updates = measurement.updates
    key = key_of([*measurement.measures])
    return Run(
        name=f"{training.name}, after {updates:,} updates",
        command=(),
        result=training.folder / f"measures-{updates}-{key}.json",
        read_result=partial(measure_checkpoint, measurement=measurement),
        needs=measurement.checkpoint,
        weight=TIME_OF_A_MEASURE * workspace.plan.updates_of(training.model) * len(measurement.measures),
    )


def environments() -> list[dict[str, str]]:
    """Return the environment of the runs at the same time: each has a GPU of its own, as far as there are any."""
    if not torch.cuda.is_available():
        return [{}]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else range(torch.cuda.device_count())
    return [{"CUDA_VISIBLE_DEVICES": str(device)} for device in devices]
