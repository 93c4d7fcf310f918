"""The user's own files as the sets of a sentence task, which the labels of the training file define."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.finetuning.options import ClassificationOptions
from mae_lm_fairseq.finetuning.results import MODEL, end_of_path
from mae_lm_fairseq.finetuning.sentences.metrics import measure
from mae_lm_fairseq.finetuning.sentences.prediction import columns_of, predict_table
from mae_lm_fairseq.finetuning.sentences.rows import Rows, label_text, number, to_rows
from mae_lm_fairseq.finetuning.sentences.tasks import Task, predictions
from mae_lm_fairseq.text.tables import WRITTEN, Table, cell_text, read_table
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256
from mae_lm_fairseq.wrapped.heads import SENTENCES


class OwnFiles:
    """Files of the user's own, read before the training.

    Raises:
        UserError: if a file is malformed; or a label of the test file is unknown.
    """

    outputs = ("test_predictions", "test_predictions.*")

    def __init__(self, options: ClassificationOptions):
        self.options = options
        self.is_test_scored = options.score_runs
        self.splits = ("train", "valid", "test") if options.score_runs else ("train", "valid")
        self.files = {"train": options.train, "dev": options.dev}
        if options.test:
            self.files["test"] = options.test
        columns = [column for column in (options.text, options.text_pair) if column is not None]
        if options.label in columns:  # which would predict itself
            raise UserError(f"--label {options.label} is also a column of the texts; name another one")
        self.tables = {name: read_table(path) for name, path in self.files.items()}
        self.task = make_task(self.tables["train"], columns, options.label, options.regression)
        if options.test:
            self._read_test_file(self.tables["test"])

    def _read_test_file(self, table: Table) -> None:
        label_column = self.task.label_column
        self.test_task = replace(self.task, columns=columns_of(table, self.task.columns))
        # In the hub's files of GLUE, every label of a test set is -1.
        no_labels = {"", "-1", "-1.0"} - set(self.task.labels)
        labels = {cell_text(row.get(label_column)).strip() for _, row in table.rows}
        is_labelled = not table.is_plain_text and not labels <= no_labels
        self.test_rows = to_rows(self.test_task, table, is_labelled)
        self.test_rows.check(remedy=f"or remove the column {label_column!r} to predict only")
        if self.options.score_runs and not is_labelled:
            raise UserError(f"{table.path}: --score-runs needs labels in the column {label_column!r}")
        suffix = table.path.suffix.lower()
        self.predictions = f"test_predictions{suffix if suffix in WRITTEN else '.jsonl'}"

    def settings(self) -> dict[str, Any]:
        """Return what the results depend on; the test file is only part of it if every run is scored on it.

        Otherwise a test file that is added or corrected later is predicted by the models of the finished runs.
        """
        options = self.options
        names = self.files if options.score_runs else ("train", "dev")
        settings: dict[str, Any] = {f"{name} file": file_sha256(self.files[name]) for name in names}
        settings["columns"] = [options.text, options.text_pair, options.label]
        settings["regression"] = self.task.is_regression
        return settings

    def read(self, split: str) -> Rows:
        """Return the rows of a set, given fairseq's name of it.

        Raises:
            UserError: if there are malformed rows.
        """
        if split == "test":
            return self.test_rows
        table = self.tables["train" if split == "train" else "dev"]
        rows = to_rows(self.task, table, labelled=True)
        rows.check(self.options.skip_malformed)
        return rows

    def predict(self, best: Run, out: Path, made: Path) -> dict[str, Any]:
        """Predict the test file, if any, with the best model, and write the predictions to ``made``.

        Return files, labels, and the metrics on the test file.
        """
        files = {name: end_of_path(path.resolve()) for name, path in self.files.items()}
        content = {"files": files, "labels": list(self.task.labels)}
        if not self.options.test:
            return content
        model, table = open_finetuned(out / MODEL), self.tables["test"]
        logits = predict_table(model, self.test_task, table, made / self.predictions)
        metrics = {}
        if self.test_rows.labels:
            predicted = predictions(self.test_task, logits)
            metrics = measure(self.task.all_metrics, predicted, np.array(self.test_rows.labels))
        return content | {"test_metrics": metrics, "test_predictions_by": best.name}


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


def make_task(table: Table, columns: Sequence[str], label_column: str, regression: bool) -> Task:
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
    numbers = [number(label) for label in labels]
    scores = [value for value in numbers if value is not None and math.isfinite(value)]
    if scores and None not in numbers:  # among numbers, NaN is none; else a class
        labels = [label for label, value in zip(labels, numbers, strict=True) if math.isfinite(value)]
    has_words = len(scores) < len(labels)
    are_integers = all(score == int(score) for score in scores)
    is_regression = regression or not (has_words or are_integers)

    different = set(scores) if is_regression else labels
    if len(different) < 2:
        needed = "scores" if is_regression else "labels"
        present = ", ".join(map(repr, labels[:2])) or "none"
        raise UserError(
            f"{table.path}: training needs at least two different {needed} in the column {label_column!r}, which has "
            f"{present}"
        )

    f1 = "f1" if len(labels) == 2 else "macro_f1"
    # The head is not called after the file, whose name may have dots, as names of modules do not.
    file = end_of_path(table.path.resolve().with_suffix(""))
    make = partial(Task, f"{file} {label_column}", tuple(columns), label_column, head=SENTENCES.name)
    if is_regression:
        return make((), metrics=("pearson", "spearman"), score_range=(min(scores), max(scores)))
    return make(tuple(labels), metrics=("accuracy",), also_reported=(f1, "matthews"))
