"""Files of a study: where a training leaves its models and measurements, and what child processes write there.

This module imports neither fairseq nor torch, because child processes, which measure, import it.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq.study.measures import Trained
from mae_lm_fairseq.study.plan import Measure, Model, Plan
from mae_lm_fairseq.training.runner import Run
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
        """Directory of checkpoints and measurements, named after model, learning rate and seed."""
        rate = [f"lr{self.learning_rate:g}"] if self.learning_rate else []
        return self.out / "runs" / "-".join([self.model.directory, *rate, f"seed{self.seed}"])

    def checkpoint(self, updates: int) -> Path:
        """Return the checkpoint after a number of updates, without the state of the optimizer."""
        return self.folder / "models" / f"{updates}.pt"

    def result(self, updates: int) -> Path:
        """Return the result file of the run that trains to a number of updates."""
        return self.folder / f"training-{updates}.json"

    def records(self, updates: int) -> list[dict[str, Any]]:
        """Return what result files hold of a number of updates: of training and first measuring, then of measuring."""
        files = [self.result(updates), *sorted(self.folder.glob(f"measures-{updates}-*.json"))]
        return [read_json(file, _record) for file in files if file.exists()]

    def measured(self, updates: int) -> dict[str, dict[str, Any]]:
        """Return what was measured after a number of updates, by measure."""
        found = {}
        for record in self.records(updates):
            found |= record["result"]["measures"]
        return found


def all_results(out: Path) -> list[dict[str, Any]]:
    """Return the results of all runs of a study."""
    contents = map(read_json, out.glob("runs/*/*.json"))
    return [content["result"] for content in contents if isinstance(content, dict) and content.get("result")]


def _record(content: dict[str, Any]) -> dict[str, Any]:
    result = content["result"]
    return content | {"result": result | {"measures": {**result["measures"]}}}


def by_checkpoint(plan: Plan, training: Training, measure: str) -> dict[int, dict[str, Any]]:
    """Return what was measured of a training by number of updates."""
    found = {updates: training.measured(updates) for updates in plan.checkpoints}
    return {updates: values[measure] for updates, values in found.items() if measure in values}


def measures_at(plan: Plan, updates: int) -> list[Measure]:
    """Return the measures of a plan after a number of updates."""
    return [one for one in plan.measures if updates in one.checkpoints(plan.checkpoints)]


def keep_and_measure(run: Run, plan: Plan, training: Training, updates: int, save: Path) -> dict[str, Any]:
    """Keep the checkpoint that a training has ended with, without the state of its optimizer, and measure it.

    Args:
        run: the run that has trained.
        plan: the plan.
        training: the training.
        updates: its number of updates.
        save: directory of its checkpoints.
    """
    import torch

    from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data

    state = load_as_data(save / "checkpoint_last.pt")
    del state["last_optimizer_state"]
    state["optimizer_history"] = state["optimizer_history"][-1:]
    for name in ("previous_training_time", "metrics"):  # on a CPU, the file is the same if it is trained again
        state["extra_state"].pop(name, None)
    reached = state["optimizer_history"][-1]["num_updates"]
    if reached != updates:
        raise UserError(f"{run.name}: training ended after {reached} updates, not {updates}; see {run.log}")
    to = training.checkpoint(updates)
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, to)
    return measure(run, plan, training, updates, measures_at(plan, updates))


def measure(run: Run, plan: Plan, training: Training, updates: int, measures: Sequence[Measure]) -> dict[str, Any]:
    """Measure a kept checkpoint; return the values by measure, the seconds, and what measured."""
    if not training.checkpoint(updates).exists():
        raise UserError(
            f"{training.checkpoint(updates)} is missing, which new measures need; remove {training.result(updates)} to "
            "train it again"
        )
    began = time.monotonic()
    log = training.result(updates).with_suffix(".log")
    found = {}
    for one in measures:
        kept = training.folder / f"{one.name}-{updates}"
        trained = Trained(training.checkpoint(updates), plan.data, training.model.masks, kept, log)
        found[one.name] = one.options.measure(trained)
    seconds = round(time.monotonic() - began, 1)
    made_by = {"commit": commit(), "machine": machine(), "versions": versions()}
    return made_by | {"seconds": seconds, "measures": found}


def remove(run: Run, folder: Path) -> None:
    """Remove the checkpoints of a finished training, which only resuming needs."""
    shutil.rmtree(folder, ignore_errors=True)
