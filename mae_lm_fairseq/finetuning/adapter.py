"""Adapters: what the fine-tuning driver needs to know of a kind of task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.recipes import Recipe
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.command import Settings
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.files import file_sha256
from mae_lm_fairseq.wrapped.heads import HeadKind

MODEL = "model"
"""Subdirectory of ``--out`` that holds the bundle of the best run."""


def on_test_file(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics by the names that they have on the test file, where every run is scored."""
    return {f"test_{name}": value for name, value in metrics.items()}


@dataclass(frozen=True, kw_only=True)
class TaskSetup:
    """Settings that the runs of a task share.

    Attributes:
        content: content of the result file about task and data.
        data: what fairseq-train has as its data: the data-bin, or for windows of texts the directory of the tokenizer.
        sequences: number of sequences per epoch.
        settings: options of fairseq-train that are the task's own, with task and criterion.
        inputs: fingerprints of the files; those named as an option take the place of its path.
        evaluate: (checkpoint, directory of its run) -> metrics; higher is better. It may write into the directory.
            Picklable, see :class:`~mae_lm_fairseq.training.runner.Run`.
        selection: the metric whose median over the seeds selects the learning rate.
    """

    content: dict[str, Any]
    data: Path
    sequences: int
    recipe: Recipe
    settings: Settings
    inputs: Mapping[str, Any]
    evaluate: Callable[[Path, Path], dict[str, float]]
    selection: str


def window_settings(task: dict[str, Any], train: Path, dev: Path) -> Settings:
    """Return the options of fairseq-train of a task on windows of texts, whose criterion has the same name.

    Runs are not validated during training: the last checkpoint is evaluated, as in the papers.
    """
    return {
        "task": task | {"train_file": train.resolve(), "valid_file": dev.resolve()},
        "criterion": {"_name": task["_name"]},
        "dataset": {"disable_validation": True},
        "checkpoint": {"save_interval_updates": 500},
    }


def window_inputs(train: Path, dev: Path) -> dict[str, str]:
    """Return the fingerprints of the files that :func:`window_settings` names, by their options."""
    return {"train-file": file_sha256(train), "valid-file": file_sha256(dev)}


class Adapter(ABC):
    """A kind of task: its data, its metrics, and the files that it writes.

    Attributes:
        kind: the head that is trained.
        outputs: names in the output directory that only this task uses, or patterns; files are written by
            :meth:`write_predictions`.
        heads: names of the heads that the starting point must have; none for a pretrained model.
    """

    kind: HeadKind
    outputs: tuple[str, ...]
    heads: tuple[str, ...] = ()

    @abstractmethod
    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        """Prepare the data, and return what the runs have in common.

        Raises:
            UserError: if a file is missing or malformed.
        """

    @abstractmethod
    def write_predictions(self, best: Run, directory: Path) -> dict[str, Any]:
        """Write the predictions of the best run's model, and return the content of the result file about them.

        The files of ``directory``, which is new, then replace those of the output directory.
        """

    @abstractmethod
    def report(self, content: dict[str, Any]) -> str:
        """Return the text of ``report.md``, given the content of the result file."""
