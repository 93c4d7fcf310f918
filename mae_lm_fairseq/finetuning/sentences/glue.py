"""GLUE in a local copy: the official TSV files, or the hub's layout in Parquet, JSON or JSON lines.

An unexpected column layout is an error. Malformed rows are reported with their line numbers, never dropped silently.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.sentences.data_bin import DataBinSets
from mae_lm_fairseq.finetuning.sentences.preparation import DATA_BIN
from mae_lm_fairseq.finetuning.sentences.rows import BY_ROW, DROP, Rows, to_rows
from mae_lm_fairseq.finetuning.sentences.tasks import GlueTask, Task, predictions
from mae_lm_fairseq.finetuning.sweep import best_checkpoint
from mae_lm_fairseq.text.tables import Table, cell_text, read_table
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_text

logger = logging.getLogger(__name__)

_HUB_SUFFIXES = (".parquet", ".jsonl", ".json")
_INDICES = ("index", "id", "idx")
_WITHOUT_HEADER = ("source", "label", "star", "sentence")


class GlueFiles:
    """The sets of a GLUE task.

    ``directory`` has one subdirectory per task, or is that of this task. ``skip_malformed`` is not for the test sets.

    Attributes:
        is_test_scored: whether every run is scored on the test set; GLUE's test sets have no labels.
    """

    is_test_scored = False

    def __init__(self, task: GlueTask, directory: Path, skip_malformed: bool = False):
        self.task, self.directory, self.skip_malformed = task, directory, skip_malformed
        self.splits = tuple(task.splits)
        self.outputs = tuple(task.submission_files.values())

    def settings(self) -> dict[str, Any]:
        """Return what the results depend on: the task, and the hashes of its files."""
        hashes = {official: file_sha256(self._find(official)) for official in self.task.splits.values()}
        return {"task": self.task.name, "files": hashes}

    def read(self, split: str) -> Rows:
        """Read a set, given fairseq's name of it.

        Raises:
            UserError: if the set does not exist, has malformed rows, or the index of a test row is not its position, by
                which predictions are matched.
        """
        official, is_labelled = self.task.splits[split], not split.startswith("test")
        path = self._find(official)
        is_hub = path.suffix != ".tsv"
        task = replace(self.task, columns=self.task.hub_columns, label_column="label") if is_hub else self.task
        header = _WITHOUT_HEADER if task.headerless and is_labelled and not is_hub else None
        table = read_table(path, header)
        if not is_labelled:
            _check_order(table)
        elif is_hub:
            for _, row in table.rows:
                if isinstance(label := row.get(task.label_column), int) and 0 <= label < len(task.labels):
                    row[task.label_column] = task.labels[label]
        rows = to_rows(task, table, is_labelled)
        rows.check(self.skip_malformed and is_labelled, DROP if is_labelled else BY_ROW)
        if len(rows.sentences) != (expected := task.rows.get(official, len(rows.sentences))):
            logger.warning("%s: %d rows; the official %s has %d", path, len(rows.sentences), official, expected)
        return rows

    def predict(self, best: Run, out: Path, made: Path) -> dict[str, Any]:
        """Write the predictions on the test sets, by a run's best checkpoint, for the GLUE server, to ``made``."""
        sets = DataBinSets(best_checkpoint(best), out / DATA_BIN)
        for split, name in self.task.submission_files.items():
            predicted = predictions(self.task, sets.logits(split))
            write_text(made / name, submission(self.task, predicted))
        return {"test_predictions_by": best.name}

    def _find(self, official: str) -> Path:
        hub = official.replace("dev", "validation")
        names = [f"{official}.tsv", *(f"{hub}{suffix}" for suffix in _HUB_SUFFIXES), f"{hub}-00000-of-00001.parquet"]
        name, lower = self.task.name, self.task.name.lower()
        for folder in (name, lower, lower.replace("-", ""), "."):
            for file in names:
                if (self.directory / folder / file).is_file():
                    return self.directory / folder / file
        raise UserError(
            f"{self.directory}: has no set {official} of {name}, neither in the official layout "
            f"({name}/{official}.tsv) nor in the hub's ({lower.replace('-', '')}/{hub}.parquet, .jsonl, .json)"
        )


def _check_order(table: Table) -> None:
    index = next((column for column in _INDICES if column in table.columns), None)
    if index is None or table.malformed:  # malformed rows of test sets are refused later
        return
    for position, (line, row) in enumerate(table.rows):
        if (found := cell_text(row.get(index))) != str(position):
            raise UserError(
                f"{table.path}: line {line} has the index {found:.80} instead of {position}, so predictions would be "
                "assigned to the wrong rows; restore the original order"
            )


def submission(task: Task, predicted: Sequence) -> str:
    """Return test set predictions in the format of the GLUE server: row numbers with names of labels, or scores."""
    if task.is_regression:
        low, high = task.score_range
        named = [f"{min(max(value, low), high):.3f}" for value in predicted]
    else:
        named = [task.labels[value] for value in predicted]
    return "index\tprediction\n" + "".join(f"{index}\t{name}\n" for index, name in enumerate(named))
