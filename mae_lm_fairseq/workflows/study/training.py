"""Trainings of a study: one model, learning rate and seed, from checkpoint to checkpoint.

A training is a chain of ``fairseq-train`` runs, each of which ends at a checkpoint of the plan and resumes from the one
before. So checkpoints can be at any number of updates, and each is measured while training goes on.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE, register
from mae_lm_fairseq.recipes.machine import split_global_batch
from mae_lm_fairseq.recipes.settings import as_options, as_words, recipe, settings
from mae_lm_fairseq.recipes.training_command import DEVICE
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.runner import Run
from mae_lm_fairseq.utils.versions import commit, machine
from mae_lm_fairseq.workflows.study.plan import Model, Plan

SAVED = 20
"""Number of times that a training is saved for resuming."""
PRECISIONS = ("fp16", "bf16", "amp", "autocast", "memory-efficient-fp16", "memory-efficient-bf16")
OF_THE_ENGINE = {
    "arch": "arch of the model",
    "seed": "seeds of the model",
    "max-update": "updates of [train]",
    "warmup-updates": "warmup of [train]",
    "total-num-update": "updates of [train]",
    "finetune-from-model": "start of the model",
    **dict.fromkeys(("save-dir", "restore-file", "user-dir", "log-format", "no-save"), ""),
    **dict.fromkeys(("cpu", "distributed-world-size", "save-interval-updates", "keep-interval-updates"), ""),
}
"""Options of fairseq-train that the engine sets, and what to use instead."""


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        model: the model.
        learning_rate: the learning rate; None for that of the options or the recipe.
        seed: the seed.
        out: output directory of the study.
    """

    model: Model
    learning_rate: float | None
    seed: int
    out: Path

    @property
    def name(self) -> str:
        """Name in messages."""
        rate = f", learning rate {self.learning_rate:g}" if self.learning_rate else ""
        return f"{self.model.name}{rate}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Directory of checkpoints and measurements: model, learning rate and seed."""
        words = "".join(letter if letter.isalnum() or letter == "." else " " for letter in self.model.name).split()
        rate = [f"lr{self.learning_rate:g}"] if self.learning_rate else []
        return self.out / "runs" / "-".join([*words, *rate, f"seed{self.seed}"])

    def checkpoint(self, updates: int) -> Path:
        """Return the checkpoint after a number of updates, without the state of the optimizer."""
        return self.folder / "models" / f"{updates}.pt"

    def log(self, updates: int) -> Path:
        """Return the log of the run that ends after a number of updates."""
        return self.folder / f"training-{updates}.log"


def options_of(plan: Plan, model: Model) -> dict[str, Any]:
    """Return the options of fairseq-train for a model, without those of one training.

    They are the recipe's, then the plan's, then the model's. With another schedule than the recipe's, the plan states
    all of its options.

    Raises:
        UserError: if the recipe's number of sequences cannot be divided into batches of this size.
    """
    chosen, given = settings(model.arch), {**plan.options, **model.options}
    if given.get("lr-scheduler", chosen["lr_scheduler"]["_name"]) != chosen["lr_scheduler"]["_name"]:
        del chosen["lr_scheduler"]
    options = as_options(chosen)
    if "lr_scheduler" in chosen:
        options |= {"warmup-updates": plan.train.warmup, "total-num-update": plan.train.updates}
    options |= {"log-interval": max(1, min(options["log-interval"], plan.train.updates // 4))} | given
    sequences = recipe(model.arch)["sequences"].value
    if not {"update-freq", "max-tokens"} & given.keys():
        batch = int(options["batch-size"])
        size, accumulated = split_global_batch(sequences, 1, batch, smaller="batch-size" not in given)
        options |= {"batch-size": size, "update-freq": accumulated}
    if torch.cuda.is_available() and not set(PRECISIONS) & given.keys():
        options["fp16"] = True
    return options | as_options(DEVICE)


def command(plan: Plan, training: Training, updates: int, save: Path) -> list[str]:
    """Return the command that trains until a number of updates.

    Args:
        plan: the plan.
        training: the training.
        updates: number of updates at the end.
        save: directory for resuming.
    """
    options = options_of(plan, training.model) | {"seed": training.seed, "max-update": updates}
    if training.learning_rate is not None:
        options["lr"] = training.learning_rate
    if training.model.start is not None:
        options["finetune-from-model"] = training.model.start
    every = max(1, plan.train.updates // SAVED)
    options |= {"save-dir": save, "save-interval-updates": every, "keep-interval-updates": 1}
    options |= {"no-epoch-checkpoints": True, "disable-validation": True, "log-format": "json", "user-dir": PACKAGE}
    return [sys.executable, "-m", "fairseq_cli.train", str(plan.data.data_bin), *as_words(options)]


def training_runs(plan: Plan, training: Training, checkpoints: Sequence[int]) -> dict[int, Run]:
    """Return the runs of a training by the number of updates at their end.

    A checkpoint that was added to the plan after a later one was trained is trained again from the first update.

    Args:
        plan: the plan.
        training: the training.
        checkpoints: numbers of updates after which models are kept, ascending.
    """
    runs: dict[int, Run] = {}
    finished = [updates for updates in checkpoints if training.checkpoint(updates).exists()]
    for updates in checkpoints:
        is_late = updates not in finished and any(updates < later for later in finished)
        save = training.folder / (f"checkpoints-{updates}" if is_late else "checkpoints")
        before = max((one for one in runs if not is_late), default=0)
        is_last = updates == checkpoints[-1]
        runs[updates] = Run(
            training.name,
            command(plan, training, updates, save),
            training.folder / f"training-{updates}.json",
            partial(_keep_model, to=training.checkpoint(updates), save=save),
            updates=(before, updates),
            clean_up=partial(_remove, folder=save) if is_last or is_late else _nothing,
            after=[runs[before]] if before else [],
            weight=updates - before,
        )
    return runs


def _keep_model(run: Run, to: Path, save: Path) -> dict[str, Any]:
    """Keep the last checkpoint without the state of its optimizer, and return what is known of the training."""
    register()
    from fairseq import checkpoint_utils

    state = torch.load(save / "checkpoint_last.pt", weights_only=True, mmap=True)
    state.pop("last_optimizer_state", None)
    updates = state["optimizer_history"][-1]["num_updates"]
    if updates != run.updates[1]:
        raise UserError(f"{run.name}: training ended after {updates} updates, not {run.updates[1]}; see {run.log}")
    to.parent.mkdir(parents=True, exist_ok=True)
    checkpoint_utils.torch_persistent_save(state, str(to))
    return {"updates": updates, "commit": commit(), "machine": machine()}


def _remove(run: Run, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _nothing(run: Run) -> None:
    """Keep the checkpoints for the next run of the training."""
