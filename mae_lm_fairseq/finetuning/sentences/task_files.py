"""Interface of the files of a sentence task, which GLUE's and the user's own have."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.sentences.rows import Rows
from mae_lm_fairseq.finetuning.sentences.tasks import Task
from mae_lm_fairseq.training.runner import Run


class TaskFiles(ABC):
    """Files of a task: its sets, what the results depend on, and the predictions on its test set.

    A split is fairseq's name of a set: train, valid and valid1, test and test1. GLUE and the user call valid dev.

    Attributes:
        splits: the sets that are prepared.
        outputs: names of the files with predictions, or patterns.
        is_test_scored: whether every run is scored on the test set.
    """

    task: Task
    splits: tuple[str, ...]
    outputs: tuple[str, ...]
    is_test_scored: bool

    @abstractmethod
    def made_from(self) -> dict[str, Any]:
        """Return what data-bin and runs depend on: hashes of files, and what else tells how they are read."""

    @abstractmethod
    def read(self, split: str) -> Rows:
        """Return the rows of a set.

        Raises:
            UserError: if the set does not exist, or has malformed rows that may not be skipped.
        """

    @abstractmethod
    def write_predictions(self, best: Run, out: Path, directory: Path) -> dict[str, Any]:
        """Write the predictions on the test set to a new directory, by the best run or its bundle.

        ``out`` is the output directory, which has data-bin and bundle. Return the content of the result file about the
        predictions.
        """
