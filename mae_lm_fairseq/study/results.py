"""Files of a study: where a training leaves its models and measurements, and what child processes write there."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data
from mae_lm_fairseq.measures.kind import Data, Trained
from mae_lm_fairseq.study.plan import Measure, Model
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.untrained import write_untrained
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.versions import commit, machine, versions


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        model: the model.
        learning_rate: the learning rate; None for that of the options or the recipe.
        seed: the seed.
        folder: directory of checkpoints and measurements.
    """

    model: Model
    learning_rate: float | None
    seed: int
    folder: Path = Path()

    @property
    def name(self) -> str:
        """Name in messages."""
        rate = f", learning rate {self.learning_rate:g}" if self.learning_rate else ""
        return f"{self.model.name}{rate}, seed {self.seed}"

    def checkpoint(self, updates: int) -> Path:
        """Return the checkpoint after a number of updates, without the state of the optimizer; after 0, the start."""
        if updates == 0 and self.model.start is not None:
            return self.model.start
        return self.folder / "models" / f"{updates}.pt"

    def result(self, updates: int) -> Path:
        """Return the result file of the run that trains to a number of updates."""
        return self.folder / f"training-{updates}.json"

    def records(self, updates: int) -> list[dict[str, Any]]:
        """Return what result files hold of a number of updates: of training and first measuring, then of measuring."""
        files = [self.result(updates), *sorted(self.folder.glob(f"measures-{updates}-*.json"))]
        return [read_json(file) for file in files if file.exists()]

    def measured(self, updates: int) -> dict[str, dict[str, Any]]:
        """Return what was measured after a number of updates, by the measures' keys."""
        results = (record["result"]["measures"] for record in self.records(updates))
        return {key: values for measures in results for key, values in measures.items()}


@dataclass(frozen=True)
class Measuring:
    """Measures of a training after a number of updates, by key."""

    training: Training
    updates: int
    data: Data
    measures: Mapping[str, Measure]


def keep_and_measure(run: Run, measuring: Measuring, save: Path) -> dict[str, Any]:
    """Keep the last checkpoint in ``save``, without the state of its optimizer, and measure it."""
    state = load_as_data(save / "checkpoint_last.pt")
    reached, updates = state["optimizer_history"][-1]["num_updates"], measuring.updates
    if reached != updates:
        raise UserError(f"{run.name}: training ended after {reached} updates, not {updates}; see {run.log}")
    keep(state, measuring.training.checkpoint(updates))
    return measure(run, measuring)


def keep_untrained_and_measure(run: Run, measuring: Measuring, words: Sequence[str], save: Path) -> dict[str, Any]:
    """Keep a model with random weights in place of a trained one, and measure it.

    Args:
        words: arguments of the fairseq-train that would train it.
        save: directory of the checkpoint with optimizer state, which is not kept.
    """
    path = save / "checkpoint_untrained.pt"
    write_untrained(words, path)
    keep(load_as_data(path), measuring.training.checkpoint(measuring.updates))
    return measure(run, measuring)


def keep(state: dict[str, Any], path: Path) -> None:
    """Write the state of a checkpoint without that of its optimizer."""
    del state["last_optimizer_state"]
    state["optimizer_history"] = state["optimizer_history"][-1:]
    for name in ("previous_training_time", "metrics"):  # on a CPU, the file is the same if it is trained again
        state["extra_state"].pop(name, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)


def measure(run: Run, measuring: Measuring) -> dict[str, Any]:
    """Measure a kept checkpoint; return the values by the measures' keys, the seconds, and what measured."""
    training, updates = measuring.training, measuring.updates
    path, log = training.checkpoint(updates), training.result(updates).with_suffix(".log")
    began, found = time.monotonic(), {}
    for key, one in measuring.measures.items():
        kept = training.folder / f"{one.options.kind}-{updates}-{key}"
        model = Trained(
            label=one.name,
            path=path,
            data=measuring.data,
            masks=training.model.masks,
            random_weights=one.options.random_weights,
            kept=kept,
            log=log,
        )
        found[key] = one.options.recorded(one.options.measure(model))
    seconds = round(time.monotonic() - began, 1)
    made_by = {"commit": commit(), "machine": machine(), "versions": versions()}
    return made_by | {"seconds": seconds, "measures": found}


def remove(run: Run, folder: Path) -> None:
    """Remove the checkpoints of a finished training, which only resuming needs."""
    shutil.rmtree(folder, ignore_errors=True)
