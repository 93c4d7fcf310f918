"""The user's own files as the sets of a sentence task, which the labels of the training file define."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.checkpoints.validation import SENTENCE_HEAD
from mae_lm_fairseq.finetuning.models import open_finetuned
from mae_lm_fairseq.finetuning.options import ClassificationOptions
from mae_lm_fairseq.finetuning.results import MODEL
from mae_lm_fairseq.finetuning.sentences.prediction import check_predictable, plain_text_column, predict_table
from mae_lm_fairseq.finetuning.sentences.rows import Rows, number, to_rows
from mae_lm_fairseq.finetuning.sentences.tables import WRITTEN, Table, cell_text, read_table
from mae_lm_fairseq.finetuning.sentences.tasks import Task, measure, predictions
from mae_lm_fairseq.finetuning.sweep import prediction_names, remove_predictions
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256

_MANY = 10
"""Number of different labels from which numbers with fractions are taken for scores."""


class OwnFiles:
    """Files of the user's own, checked before the training.

    Raises:
        UserError: if a file is malformed, or lacks a column; or a label of the test file is unknown.
    """

    splits = ("train", "valid")
    outputs = prediction_names("test")

    def __init__(self, options: ClassificationOptions):
        self.options = options
        self.files = {"train": options.train, "dev": options.dev} | ({"test": options.test} if options.test else {})
        self.tables = {name: read_table(path) for name, path in self.files.items()}
        self._check_columns()
        columns = (options.text,) if options.text_pair is None else (options.text, options.text_pair)
        self.task = make_task(self.tables["train"], columns, options.label, options.regression)
        if self.task.is_regression:
            _check_scores(self.tables["dev"], options.label)
        self.test = TestFile(self.task, self.tables["test"], options.out) if options.test else None
        self.described = {
            "files": {name: "/".join(path.resolve().parts[-2:]) for name, path in self.files.items()},
            "labels": list(self.task.labels),
        }

    def _check_columns(self) -> None:
        """Check that all files have their columns; a test file needs no labels."""
        options = self.options
        texts = {"--text": options.text, "--text-pair": options.text_pair}
        texts = {option: column for option, column in texts.items() if column is not None}
        columns = texts | {"--label": options.label}
        for (first, column), (second, other) in itertools.combinations(columns.items(), 2):
            if column == other:
                raise UserError(f"{first} and {second} both name the column {column!r}; give each a column of its own")
        for name, table in self.tables.items():
            if name != "test":
                table.check_columns(columns)
            elif not table.is_plain_text:
                table.check_columns(texts)

    def settings(self) -> dict[str, Any]:
        """Return what the results depend on, without the test file.

        A test file that is added or corrected later is predicted by the models of the finished runs.
        """
        return {
            **{f"{name} file": file_sha256(self.files[name]) for name in ("train", "dev")},
            "columns": [self.options.text, self.options.text_pair, self.options.label],
            "regression": self.task.is_regression,
        }

    def read(self, split: str) -> Rows:
        """Return the rows of a set, given fairseq's name of it.

        Raises:
            UserError: if there are malformed rows.
        """
        rows = to_rows(self.task, self.tables["dev" if split == "valid" else split], labelled=True)
        rows.check(False, self.options.skip_malformed)
        return rows

    def predict(self, chosen: Run, data: Path, out: Path) -> dict[str, Any]:
        """Predict the test file, if any, with the best model, and return the metrics, if the file has labels."""
        metrics = self.test.predict() if self.test else None
        remove_predictions(out, "test", self.test.predictions if self.test else None)
        return {} if metrics is None else {"test_metrics": metrics, "test_predictions_by": chosen.name}


def make_task(table: Table, columns: Sequence[str], label_column: str, regression: bool) -> Task:
    """Find out the task of a training file.

    It is regression if it must be, or if all labels are numbers and not all of them integers. Scores are scaled so that
    those of the training file go from 0 to 1. Otherwise the labels are the classes, in sorted order; the score is the
    accuracy. F1 is that of the last of two classes (that of ``1``, ``true``, ``yes`` or ``positive``), and the mean
    over the classes (macro) of three or more.

    Args:
        table: the training file.
        columns: of the text, or of both texts of a pair.
        label_column: of the labels.
        regression: whether labels are scores even if all are integers.

    Raises:
        UserError: if there are not at least two labels, or scores are mixed with labels that are not numbers.
    """
    lines = {text: line for line, row in reversed(table.rows) if (text := cell_text(row.get(label_column))).strip()}
    found = sorted(lines)
    known = [score for label in found if (score := number(label)) is not None]
    fractions = sum(score != int(score) for score in known)
    if len(known) < len(found):
        other = next(label for label in found if number(label) is None)
        where = f"{table.path}: line {lines[other]}: the label {other!r:.80} in the column {label_column!r}"
        if regression and not known:
            raise UserError(f"{where} is not a number; --regression needs numbers")
        if not regression and len(found) >= _MANY and fractions > len(found) / 2:
            raise UserError(f"{where} is not a number; most labels are: correct it, or use --regression")
    regression = regression or (len(known) == len(found) and fractions > 0)
    if len(set(known) if regression else found) < 2:
        which = f"only the label {found[0]!r:.80}" if found else "no label"
        raise UserError(
            f"{table.path}: there is {which} in the column {label_column!r}; training needs at least two different ones"
        )
    kind = (
        {"labels": (), "metrics": ("pearson", "spearman"), "score_range": (min(known), max(known))}
        if regression
        else {
            "labels": tuple(found),
            "metrics": ("accuracy",),
            "also_reported": ("f1" if len(found) == 2 else "macro_f1", "matthews"),
        }
    )
    name = f"{'/'.join(table.path.resolve().with_suffix('').parts[-2:])} {label_column}"
    # Names of modules have no dots, which the name of the file may have.
    return Task(name, tuple(columns), label_column, head=SENTENCE_HEAD, **kind)


def _check_scores(dev: Table, label: str) -> None:
    """Refuse a development file with equal scores: without a correlation, no model is better than another."""
    scores = {number(cell_text(row.get(label))) for _, row in dev.rows} - {None}
    if len(scores) == 1:
        raise UserError(
            f"{dev.path}: every score in the column {label!r} is {scores.pop():g}, so there is no correlation; "
            "use a development file with different scores"
        )


class TestFile:
    """A file to predict with the best model, checked before the training.

    Args:
        task: of the training file.
        table: the file, with or without labels.
        out: directory of the predictions.

    Raises:
        UserError: if a row is malformed, a label is unknown, or the file cannot hold predictions.
    """

    def __init__(self, task: Task, table: Table, out: Path):
        self.task = replace(task, columns=(plain_text_column(task, table),)) if table.is_plain_text else task
        self.table = table
        self.model = out / MODEL
        suffix = table.path.suffix.lower()
        self.predictions = out / f"test_predictions{suffix if suffix in WRITTEN else '.jsonl'}"
        check_predictable(self.task, table, self.predictions)
        self.rows = to_rows(self.task, table, labelled=_has_labels(task, table))
        if self.rows.malformed:
            raise UserError(
                f"{table.path}: {self.rows.describe_malformed()}; fix the file, or remove the column "
                f"{task.label_column!r} to predict only"
            )

    def predict(self) -> dict[str, float]:
        """Write the predictions, and return the metrics, none if the file has no labels."""
        logits = predict_table(open_finetuned(self.model), self.task, self.table, self.predictions)
        if not self.rows.labels:
            return {}
        names = (*self.task.metrics, *self.task.also_reported)
        return measure(names, predictions(self.task, logits), np.array(self.rows.labels))


def _has_labels(task: Task, table: Table) -> bool:
    """Return whether a test file has labels. In the hub's files of GLUE, every label of a test set is -1."""
    if table.is_plain_text:
        return False
    found = {cell_text(row.get(task.label_column)).strip() for _, row in table.rows}
    return not found <= {"", "-1", "-1.0"} - set(task.labels)
