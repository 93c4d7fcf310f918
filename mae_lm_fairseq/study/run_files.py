"""Files of the runs of a study: where a training leaves its models, and what child processes write there."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mae_lm_fairseq.fairseq_patches.resuming import load_mapped
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from mae_lm_fairseq.study.plan import Model, PlannedMeasure
from mae_lm_fairseq.trained.checkpoint_file import unreadable
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.untrained import write_untrained
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_record
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.versions import commit, machine, versions
from mae_lm_fairseq.utils.writing import remove


@dataclass(frozen=True)
class RunResult:
    """Result of a run that trains or measures, and what it was made with.

    Attributes:
        seconds: duration of measuring.
        measures: the values by the measures' keys.
        kept: hashes of the files that measures have kept, by name, which ``mae-lm doctor`` compares.
        training_seconds: duration of training, with that of processes that were interrupted; None if the run does not
            train, or an earlier version made it.
    """

    commit: str | None
    machine: str
    versions: Mapping[str, str]
    seconds: float
    measures: Mapping[str, Mapping[str, Any]]
    kept: Mapping[str, str] = field(default_factory=dict)
    training_seconds: float | None = None

    @classmethod
    def made_here(cls, seconds: float = 0.0, **others) -> "RunResult":
        """Return a result with the commit, machine and versions of this process."""
        return cls(commit(), machine(), versions(), round(seconds, 1), **others)

    def to_json(self) -> dict[str, Any]:
        """Return what the result file has of it."""
        content = asdict(self)
        if self.training_seconds is None:
            del content["training_seconds"]
        return content


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """Content of the result file of a run: its name and command, the duration of its last process, and its result."""

    name: str = ""
    command: tuple[str, ...]
    seconds: float
    result: RunResult


def read_run_file(path: Path) -> RunFile:
    """Read a result file.

    Raises:
        UserError: if it is damaged, or has another structure.
    """
    return read_record(path, lambda content: typed(content, RunFile))


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
        return self.models / f"{updates}.pt"

    @property
    def models(self) -> Path:
        """Directory of the checkpoints that are measured."""
        return self.folder / "models"

    def result(self, updates: int) -> Path:
        """Return the result file of the run that trains to a number of updates."""
        return self.folder / f"training-{updates}.json"

    def run_files(self, updates: int) -> list[RunFile]:
        """Return the result files of a checkpoint.

        First comes that of a run that trains until there, then those of runs that measure. In earlier versions, the
        first one measured as well.
        """
        paths = sorted(self.folder.glob(f"measures-{updates}-*.json"))
        result = self.result(updates)
        if result.exists():
            paths.insert(0, result)
        return [read_run_file(path) for path in paths]

    def values_by_key(self, updates: int) -> dict[str, dict[str, Any]]:
        """Return the values after a number of updates, by the measures' keys."""
        values = {}
        for run_file in self.run_files(updates):
            values |= run_file.result.measures
        return values


@dataclass(frozen=True)
class Measurement:
    """Measures of a training after a number of updates, which one run takes.

    Attributes:
        training: the training.
        updates: the number of updates.
        data: the files of the study.
        log: log of the training.
        timed: the updates since the checkpoint of the plan before.
        measures: the measures by key.
    """

    training: Training
    updates: int
    data: Data
    log: Path
    timed: range
    measures: Mapping[str, PlannedMeasure]

    @property
    def checkpoint(self) -> Path:
        return self.training.checkpoint(self.updates)

    def lacking(self) -> "Measurement":
        """Return what of it has no result yet."""
        values = self.training.values_by_key(self.updates)
        lacking = {key: planned for key, planned in self.measures.items() if key not in values}
        return replace(self, measures=lacking)


def read_training(run: Run, updates: int, save: Path) -> dict[str, Any]:
    """Return the result of a run that trains, whose models others measure.

    Args:
        updates: the number of updates that it was to make.
        save: directory of its checkpoints for resuming.

    Raises:
        UserError: if it has ended after another number of updates, or its last checkpoint cannot be read.
    """
    path = save / "checkpoint_last.pt"
    try:
        checkpoint = load_mapped(path)
        reached = checkpoint["optimizer_history"][-1]["num_updates"]
    except Exception as error:  # a damaged file can raise anything
        reason = unreadable(path, error, "damaged, or not a checkpoint")
        raise UserError(f"{run.name}: cannot read {path}: {reason}; see {run.log}") from error
    if reached != updates:
        raise UserError(f"{run.name}: training ended after {reached} updates, not {updates}; see {run.log}")
    # fairseq adds the time of earlier processes, which were killed.
    seconds = checkpoint.get("extra_state", {}).get("previous_training_time", 0.0)
    return RunResult.made_here(measures={}, training_seconds=round(seconds, 1)).to_json()


def write_random(run: Run, words: Sequence[str], path: Path) -> dict[str, Any]:
    """Write a model with random weights in place of a trained one, and return the result of this.

    Args:
        words: arguments of the fairseq-train that would train it.
    """
    write_untrained(words, path)
    return RunResult.made_here(measures={}).to_json()


def measure_checkpoint(run: Run, measurement: Measurement) -> dict[str, Any]:
    """Measure a checkpoint; return the values by the measures' keys, the seconds, and what measured."""
    training = measurement.training
    updates = measurement.updates
    began = time.monotonic()
    values = {}
    hashes = {}
    for key, planned in measurement.measures.items():
        measure = planned.measure
        kept = training.folder / f"{measure.kind}-{updates}-{key}"
        model = ModelToMeasure(
            label=planned.name,
            path=measurement.checkpoint,
            data=measurement.data,
            masks=training.model.masks,
            random_weights=measure.random_weights,
            kept=kept,
            log=measurement.log,
            timed=measurement.timed,
        )
        values[key] = measure.values_of(model)
        moments = kept.with_suffix(".safetensors")
        if moments.exists():
            hashes[moments.name] = file_sha256(moments)
    seconds = time.monotonic() - began
    return RunResult.made_here(seconds, measures=values, kept=hashes).to_json()


def remove_checkpoints(run: Run, folder: Path) -> None:
    """Remove the checkpoints of a finished training, which only resuming needs."""
    with contextlib.suppress(OSError):
        remove(folder, below=run.result.parent.parent)
