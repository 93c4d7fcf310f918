"""Files of a study: where a training leaves its models and measurements, and what child processes write there."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mae_lm_fairseq.fairseq_patches.resuming import load_mapped, saved_updates
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from mae_lm_fairseq.study.plan import Model, PlannedMeasure
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.untrained import write_untrained
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import KEPT, file_sha256, read_record
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.versions import commit, machine, versions
from mae_lm_fairseq.utils.writing import remove

TRAINING_SECONDS = "training_seconds"
"""Key of the duration of a training in its result, with that of processes that were interrupted."""


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

    def records(self, updates: int) -> list[dict[str, Any]]:
        """Return the content of the result files of a checkpoint.

        First comes that of a run that trains until there, then those of runs that measure. In earlier versions, the
        first one measured as well.
        """
        paths = sorted(self.folder.glob(f"measures-{updates}-*.json"))
        result = self.result(updates)
        if result.exists():
            paths.insert(0, result)
        return [read_record(path, _checked) for path in paths]

    def values_by_key(self, updates: int) -> dict[str, dict[str, Any]]:
        """Return the values after a number of updates, by the measures' keys."""
        values = {}
        for record in self.records(updates):
            values |= record["result"]["measures"]
        return values


@dataclass(frozen=True)
class ToMeasure:
    """Measures to take of a training after a number of updates.

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

    def lacking(self) -> "ToMeasure":
        """Return what of it has no result yet."""
        values = self.training.values_by_key(self.updates)
        lacking = {key: planned for key, planned in self.measures.items() if key not in values}
        return replace(self, measures=lacking)


def training_result(run: Run, updates: int, save: Path) -> dict[str, Any]:
    """Return the result of a training, whose models others measure.

    Args:
        updates: the number of updates that it was to make.
        save: directory of its checkpoints for resuming.

    Raises:
        UserError: if it has ended after another number of updates.
    """
    path = save / "checkpoint_last.pt"
    reached = saved_updates(path)
    if reached != updates:
        raise UserError(f"{run.name}: training ended after {reached} updates, not {updates}; see {run.log}")
    # fairseq adds the time of earlier processes, which were killed.
    extra_state = load_mapped(path).get("extra_state", {})
    training_seconds = extra_state.get("previous_training_time", 0.0)
    return _result({}, 0.0, {}) | {TRAINING_SECONDS: round(training_seconds, 1)}


def write_random(run: Run, words: Sequence[str], path: Path) -> dict[str, Any]:
    """Write a model with random weights in place of a trained one, and return the result of this.

    Args:
        words: arguments of the fairseq-train that would train it.
    """
    write_untrained(words, path)
    return _result({}, 0.0, {})


def measure_checkpoint(run: Run, to_measure: ToMeasure) -> dict[str, Any]:
    """Measure a checkpoint; return the values by the measures' keys, the seconds, and what measured."""
    training = to_measure.training
    updates = to_measure.updates
    began = time.monotonic()
    values = {}
    hashes = {}
    for key, planned in to_measure.measures.items():
        measure = planned.measure
        kept = training.folder / f"{measure.kind}-{updates}-{key}"
        model = ModelToMeasure(
            label=planned.name,
            path=to_measure.checkpoint,
            data=to_measure.data,
            masks=training.model.masks,
            random_weights=measure.random_weights,
            kept=kept,
            log=to_measure.log,
            timed=to_measure.timed,
        )
        values[key] = measure.recorded(measure.measure(model))
        moments = kept.with_suffix(".safetensors")
        if moments.exists():
            hashes[moments.name] = file_sha256(moments)
    return _result(values, time.monotonic() - began, hashes)


def _result(measures: Mapping[str, Any], seconds: float, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a run, and what it was made with.

    Args:
        measures: the values by the measures' keys.
        seconds: duration of measuring.
        hashes: the hashes of what measures have kept, by the names of the files.
    """
    return {
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "measures": measures,
        KEPT: hashes,
    }


def remove_checkpoints(run: Run, folder: Path) -> None:
    """Remove the checkpoints of a finished training, which only resuming needs."""
    with contextlib.suppress(OSError):
        remove(folder, below=run.result.parent.parent)


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a result file.

    Raises:
        KeyError, TypeError, ValueError: if the file has another structure.
    """
    return vars(typed({name: record[name] for name in ("command", "seconds", "result")}, _Record))


@dataclass(frozen=True)
class _Record:
    """Content of a result file."""

    command: tuple[str, ...]
    seconds: float
    result: Mapping[str, Any]

    def __post_init__(self):
        expected = {"commit": str | None, "machine": str, "versions": dict, "seconds": float | int, "measures": dict}
        for name, of_type in expected.items():
            if not isinstance(self.result[name], of_type):
                raise ValueError(name)
        for values in self.result["measures"].values():
            if not isinstance(values, dict):
                raise ValueError("measures")
