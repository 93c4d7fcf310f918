"""GLUE in a local copy: the official TSV files, or the hub's layout in Parquet, JSON or JSON lines.

An unexpected column layout is an error. Malformed rows are reported with their line numbers, never dropped silently.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.sentences.data_bin import DATA_BIN
from mae_lm_fairseq.finetuning.sentences.evaluation import DataBinSets
from mae_lm_fairseq.finetuning.sentences.rows import BY_ROW, Rows, to_rows
from mae_lm_fairseq.finetuning.sentences.task_files import TaskFiles
from mae_lm_fairseq.finetuning.sentences.tasks import GlueTask, Task, predictions
from mae_lm_fairseq.finetuning.sweep import best_checkpoint
from mae_lm_fairseq.text.tables import Table, cell_text, read_table
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_text

logger = logging.getLogger(__name__)

_HUB_SUFFIXES = (".parquet", ".jsonl", ".json", "-00000-of-00001.parquet")
_INDICES = ("index", "id", "idx")
_WITHOUT_HEADER = ("source", "label", "star", "sentence")


class GlueFiles(TaskFiles):
    """The files of a GLUE task.

    ``directory`` has one subdirectory per task, or is that of this task. ``skip_malformed`` is not for the test sets.
    """

    task: GlueTask
    is_test_scored = False  # the test sets have no labels

    def __init__(self, task: GlueTask, directory: Path, skip_malformed: bool = False):
        self.task = task
        self.directory = directory
        self.skip_malformed = skip_malformed
        self.splits = tuple(task.splits)
        self.outputs = tuple(task.submission_files.values())

    def made_from(self) -> dict[str, Any]:
        hashes = {}
        for official in self.task.splits.values():
            path = self._find(official)
            hashes[official] = file_sha256(path)
        return {"task": self.task.name, "files": hashes}

    def read(self, split: str) -> Rows:
        """Return the rows of a set.

        Raises:
            UserError: if the set does not exist, has malformed rows, or the index of a test row is not its position, by
                which predictions are matched.
        """
        task = self.task
        official = task.splits[split]
        path = self._find(official)
        is_labelled = not split.startswith("test")
        if path.suffix == ".tsv":
            header = _WITHOUT_HEADER if task.headerless and is_labelled else None
            table = read_table(path, header)
        else:
            table = read_table(path)
            task = replace(task, columns=task.hub_columns or task.columns, label_column="label")
            if is_labelled:
                _name_labels(table, task)

        if not is_labelled:
            _check_order(table)
        rows = to_rows(task, table, is_labelled)
        if is_labelled:
            rows.check(self.skip_malformed)
        else:
            rows.check(remedy=BY_ROW)

        count = len(rows.sentences)
        expected = task.rows.get(official, count)
        if count != expected:
            logger.warning("%s: %d rows; the official %s has %d", path, count, official, expected)
        return rows

    def write_predictions(self, best: Run, out: Path, directory: Path) -> dict[str, Any]:
        """Write the predictions on the test sets, by the best checkpoint of the best run, for the GLUE server."""
        sets = DataBinSets(best_checkpoint(best), out / DATA_BIN)
        for split, name in self.task.submission_files.items():
            predicted = predictions(self.task, sets.logits(split))
            write_text(directory / name, submission(self.task, predicted))
        return {"test_predictions_by": best.name}

    def _find(self, official: str) -> Path:
        name = self.task.name
        hub_name = name.lower().replace("-", "")
        hub = official.replace("dev", "validation")
        files = [f"{official}.tsv"]
        files += [hub + suffix for suffix in _HUB_SUFFIXES]
        for folder in (name, name.lower(), hub_name, "."):
            for file in files:
                path = self.directory / folder / file
                if path.is_file():
                    return path
        raise UserError(
            f"{self.directory}: has no set {official} of {name}, neither in the official layout "
            f"({name}/{official}.tsv) nor in the hub's ({hub_name}/{hub}.parquet, .jsonl, .json)"
        )


def _name_labels(table: Table, task: Task) -> None:
    """Replace the numbers of labels in the hub's files by their names."""
    for _, row in table.rows:
        label = row.get(task.label_column)
        if isinstance(label, int) and 0 <= label < len(task.labels):
            row[task.label_column] = task.labels[label]


def _check_order(table: Table) -> None:
    index = next((column for column in _INDICES if column in table.columns), None)
    if index is None or table.malformed:  # malformed rows of test sets are refused later
        return
    for position, (line, row) in enumerate(table.rows):
        stated = cell_text(row.get(index))
        if stated != str(position):
            raise UserError(
                f"{table.path}: line {line} has the index {stated:.80} instead of {position}, so predictions would be "
                "assigned to the wrong rows; restore the original order"
            )


def submission(task: Task, predicted: Sequence) -> str:
    """Return test set predictions in the format of the GLUE server: row numbers with names of labels, or scores."""
    if task.is_regression:
        low, high = task.score_range
        cells = [f"{min(max(value, low), high):.3f}" for value in predicted]
    else:
        cells = [task.labels[value] for value in predicted]
    lines = ["index\tprediction\n"]
    for index, cell in enumerate(cells):
        lines.append(f"{index}\t{cell}\n")
    return "".join(lines)
