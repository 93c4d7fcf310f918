"""The user's own files as the sets of a sentence task, which the labels of the training file define."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mae_lm_fairseq.finetuning.adapter import MODEL
from mae_lm_fairseq.finetuning.options import ClassificationOptions
from mae_lm_fairseq.finetuning.results import end_of_path
from mae_lm_fairseq.finetuning.sentences.metrics import compute_metrics
from mae_lm_fairseq.finetuning.sentences.prediction import check_room_for_predictions, columns_of, predict_table
from mae_lm_fairseq.finetuning.sentences.rows import Rows, label_text, parse_number, to_rows
from mae_lm_fairseq.finetuning.sentences.task_files import TaskFiles
from mae_lm_fairseq.finetuning.sentences.tasks import Task, predictions
from mae_lm_fairseq.text.tables import WRITTEN, Table, cell_text, read_table
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256
from mae_lm_fairseq.wrapped.heads import SENTENCES


class _TestFile(NamedTuple):
    """A test file.

    Attributes:
        task: the task, with the columns of this file.
        rows: its rows; without labels if it is to be predicted only.
        predictions_file: name of the file with the predictions.
    """

    task: Task
    rows: Rows
    predictions_file: str


class OwnFiles(TaskFiles):
    """Files of the user's own, read before the training.

    Attributes:
        tables: the files by name: train, dev and, if there is one, test.
        test: how the test file is predicted; None if there is none.

    Raises:
        UserError: if a file is malformed; or a label of the test file is unknown, or it has no room for predictions.
    """

    outputs = ("test_predictions", "test_predictions.*")

    def __init__(self, options: ClassificationOptions):
        self.options = options
        self.is_test_scored = options.score_runs
        self.splits = ("train", "valid")
        if options.score_runs:
            self.splits += ("test",)

        columns = (options.text,)
        if options.text_pair is not None:
            columns += (options.text_pair,)
        if options.label in columns:  # which would predict itself
            raise UserError(f"--label {options.label} is also a column of the texts; name another one")

        train = read_table(options.train)
        self.tables = {"train": train, "dev": read_table(options.dev)}
        self.task = make_task(train, columns, options.label, options.regression)
        self.test = None
        if options.test:
            self.tables["test"] = read_table(options.test)
            self.test = self._test_file(self.tables["test"])

    def _test_file(self, table: Table) -> _TestFile:
        label_column = self.task.label_column
        task = replace(self.task, columns=columns_of(table, self.task.columns))
        is_labelled = _is_labelled(table, task)
        rows = to_rows(task, table, is_labelled)
        rows.check(remedy=f"or remove the column {label_column!r} to predict only")
        if self.options.score_runs and not is_labelled:
            raise UserError(f"{table.path}: --score-runs needs labels in the column {label_column!r}")
        suffix = table.path.suffix.lower()
        if suffix not in WRITTEN:
            suffix = ".jsonl"
        predictions_file = f"test_predictions{suffix}"
        check_room_for_predictions(table, task, self.options.out / predictions_file)
        return _TestFile(task, rows, predictions_file)

    def made_from(self) -> dict[str, Any]:
        """Return what data-bin and runs depend on.

        The test file is only part of it if every run is scored on it. Otherwise a test file that is added or corrected
        later is predicted by the models of the finished runs.
        """
        options = self.options
        names = self.tables if options.score_runs else ("train", "dev")
        made_from: dict[str, Any] = {}
        for name in names:
            table = self.tables[name]
            made_from[f"{name} file"] = file_sha256(table.path)
        made_from["columns"] = [options.text, options.text_pair, options.label]
        made_from["regression"] = self.task.is_regression
        return made_from

    def read(self, split: str) -> Rows:
        if split == "test":
            return self.test.rows
        name = "dev" if split == "valid" else split
        rows = to_rows(self.task, self.tables[name], labelled=True)
        rows.check(self.options.skip_malformed)
        return rows

    def write_predictions(self, best: Run, out: Path, directory: Path) -> dict[str, Any]:
        """Write the predictions on the test file, if any, by the bundle of the best run.

        Return files, labels, and the metrics on the test file.
        """
        files = {}
        for name, table in self.tables.items():
            path = table.path.resolve()
            files[name] = end_of_path(path)
        content = {"files": files, "labels": list(self.task.labels)}
        if self.test is None:
            return content
        task = self.test.task
        true = self.test.rows.labels
        model = open_finetuned(out / MODEL)
        logits = predict_table(model, task, self.tables["test"], directory / self.test.predictions_file)
        metrics = {}
        if true:
            metrics = compute_metrics(task.all_metrics, predictions(task, logits), np.array(true))
        return content | {"test_metrics": metrics, "test_predictions_by": best.name}


def _is_labelled(table: Table, task: Task) -> bool:
    """Tell whether a test file has labels."""
    if table.is_plain_text:
        return False
    # In the hub's files of GLUE, every label of a test set is -1.
    no_labels = {"", "-1", "-1.0"} - set(task.labels)
    labels = {cell_text(row.get(task.label_column)).strip() for _, row in table.rows}
    return not labels <= no_labels


def different_labels(table: Table, column: str) -> list[str]:
    """Return the different labels of a table, sorted, without empty ones.

    Raises:
        UserError: if a label is a list or an object.
    """
    labels = set()
    for line, row in table.rows:
        try:
            labels.add(label_text(row.get(column)))
        except ValueError as problem:
            raise UserError(
                f"{table.path}: line {line}: column {column!r}: {problem}; write a column with one label per row"
            ) from None
    return sorted(labels - {""})


def make_task(table: Table, columns: tuple[str, ...], label_column: str, regression: bool) -> Task:
    """Find out the task of a training file, given its columns of one text or two, and of the labels.

    It is regression if it must be, or if all labels are numbers and not all of them integers. Scores are scaled so that
    those of the training file go from 0 to 1. Otherwise the labels are the classes, in sorted order; the score is the
    accuracy. F1 is that of the last of two classes (that of ``1``, ``true``, ``yes`` or ``positive``), and the mean
    over the classes (macro) of three or more.

    Raises:
        UserError: if a column is missing, or there are not at least two labels.
    """
    table.check_columns((*columns, label_column))
    labels = different_labels(table, label_column)
    numbers = [parse_number(label) for label in labels]
    scores = [value for value in numbers if value is not None and math.isfinite(value)]
    are_numbers = bool(scores) and None not in numbers
    if are_numbers:  # NaN and infinity are no scores; among words, they are classes
        labels = [label for label in labels if math.isfinite(float(label))]
    are_integers = all(map(float.is_integer, scores))
    is_regression = regression or (are_numbers and not are_integers)

    distinct = set(scores) if is_regression else labels
    if len(distinct) < 2:
        needed = "scores" if is_regression else "labels"
        present = ", ".join(map(repr, labels[:2])) or "none"
        raise UserError(
            f"{table.path}: training needs at least two different {needed} in the column {label_column!r}, which has "
            f"{present}"
        )

    file = end_of_path(table.path.resolve().with_suffix(""))
    of_file = {"name": f"{file} {label_column}", "columns": columns, "label_column": label_column}
    if is_regression:
        return Task(
            **of_file,
            labels=(),
            metrics=("pearson", "spearman"),
            selection="pearson_and_spearman",
            score_range=(min(scores), max(scores)),
            head_name=SENTENCES.name,
        )
    f1 = "f1" if len(labels) == 2 else "macro_f1"
    return Task(
        **of_file,
        labels=tuple(labels),
        metrics=("accuracy",),
        also_reported=(f1, "matthews"),
        head_name=SENTENCES.name,
    )
