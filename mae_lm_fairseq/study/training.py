"""Trainings of a study: one model, learning rate and seed, from checkpoint to checkpoint.

A training is a chain of ``fairseq-train`` runs, each of which ends at a checkpoint of the plan and resumes from the one
before. So checkpoints can be at any number of updates, and each is measured while training goes on.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.study.plan import Model, Plan
from mae_lm_fairseq.study.results import Training, keep_and_measure, remove
from mae_lm_fairseq.training.command import as_options, in_background, split_global_batch, train_command
from mae_lm_fairseq.training.runner import Run, keep_everything
from mae_lm_fairseq.training.settings import recipe, settings

SAVED = 20
"""Number of times that a training is saved for resuming."""
PRECISIONS = ("fp16", "bf16", "amp", "autocast", "memory-efficient-fp16", "memory-efficient-bf16")
_REMOVE = "remove it"
OF_THE_ENGINE = {
    "arch": "use arch of the model",
    "seed": "use seeds of the model",
    "max-update": "use updates of [train]",
    "warmup-updates": "use warmup of [train]",
    "total-num-update": "use updates of [train]",
    "finetune-from-model": "use start of the model",
    **dict.fromkeys(("task", "save-dir", "restore-file", "user-dir", "log-format", "no-save"), _REMOVE),
    **dict.fromkeys(("cpu", "distributed-world-size", "save-interval-updates", "keep-interval-updates"), _REMOVE),
    **dict.fromkeys(("no-save-optimizer-state", "reset-optimizer", "reset-lr-scheduler", "reset-dataloader"), _REMOVE),
}
"""Options of fairseq-train that the engine decides on, and what to do instead."""


def options_of(plan: Plan, model: Model) -> dict[str, Any]:
    """Return the options of fairseq-train for a model, without those of one training.

    They are the recipe's, then the plan's, then the model's. Schedules have the length of the whole training, not of
    the run until a checkpoint. With another schedule than the recipe's, the plan states its further options.

    Raises:
        UserError: if the recipe's number of sequences cannot be divided into batches of this size.
    """
    chosen, given = settings(model.arch), {**plan.options, **model.options}
    scheduler = given.get("lr-scheduler", chosen["lr_scheduler"]["_name"])
    if scheduler != chosen["lr_scheduler"]["_name"]:
        del chosen["lr_scheduler"]
    options = as_options(chosen)
    if scheduler in ("polynomial_decay", "cosine", "inverse_sqrt", "fixed"):
        options["warmup-updates"] = plan.train.warmup
    if scheduler == "polynomial_decay":
        options["total-num-update"] = plan.train.updates
    if scheduler == "cosine":
        options["lr-period-updates"] = plan.train.updates - plan.train.warmup
    if given.get("mask-prob-end"):
        options["mask-prob-updates"] = plan.train.updates
    options |= {"log-interval": max(1, min(options["log-interval"], plan.train.updates // 4))} | given
    sequences = recipe(model.arch)["sequences"].value
    if not {"update-freq", "max-tokens"} & given.keys():
        batch = int(options["batch-size"])
        size, accumulated = split_global_batch(sequences, 1, batch, smaller="batch-size" not in given)
        options |= {"batch-size": size, "update-freq": accumulated}
    if torch.cuda.is_available() and not set(PRECISIONS) & given.keys():
        options["fp16"] = True
    return options | as_options(in_background())


def command(plan: Plan, training: Training, updates: int, save: Path, **changes: Any) -> list[str]:
    """Return the command that trains until a number of updates.

    Args:
        plan: the plan.
        training: the training.
        updates: number of updates at the end.
        save: directory for resuming.
        changes: options of fairseq-train, with underscores, that differ from those of a study.
    """
    options = options_of(plan, training.model) | {"seed": training.seed, "max-update": updates}
    if training.learning_rate is not None:
        options["lr"] = training.learning_rate
    if training.model.start is not None:
        options["finetune-from-model"] = training.model.start
    every = max(1, plan.train.updates // SAVED)
    options |= {"save-dir": save, "save-interval-updates": every, "keep-interval-updates": 1}
    options |= {"no-epoch-checkpoints": True, "disable-validation": True}
    options |= {name.replace("_", "-"): value for name, value in changes.items()}
    return train_command(plan.data.data_bin, options)


def training_runs(plan: Plan, training: Training) -> dict[int, Run]:
    """Return the runs of a training, which measure as well, by the number of updates at their end.

    A checkpoint that was added to the plan after training had gone further is trained again from the first update.
    """
    runs: dict[int, Run] = {}
    finished = [updates for updates in plan.checkpoints if training.result(updates).exists()]
    saved = [int(file.stem.rpartition("_")[2]) for file in training.folder.glob("checkpoints/checkpoint_*_*.pt")]
    for updates in plan.checkpoints:
        is_late = updates not in finished and any(updates < later for later in (*finished, *saved))
        save = training.folder / (f"checkpoints-{updates}" if is_late else "checkpoints")
        before = max((one for one in runs if not is_late), default=0)
        ends = is_late or updates == plan.train.updates
        options = {"plan": plan, "training": training, "updates": updates, "save": save}
        runs[updates] = Run(
            training.name,
            command(plan, training, updates, save),
            training.result(updates),
            partial(keep_and_measure, **options),
            updates=(before, updates),
            clean_up=partial(remove, folder=save) if ends else keep_everything,
            after=[runs[before]] if before else [],
            weight=updates - before,
        )
    return runs
