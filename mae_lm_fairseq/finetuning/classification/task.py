"""Sentence tasks that are not in a table: those of the user's own files, and that of a fine-tuned model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mae_lm_fairseq.checkpoints.validation import SENTENCE_HEAD
from mae_lm_fairseq.finetuning.classification.tables import Table, cell_text
from mae_lm_fairseq.finetuning.glue.files import Rows, is_text, number
from mae_lm_fairseq.finetuning.glue.tasks import Task
from mae_lm_fairseq.utils.errors import UserError

_SHOWN = 10
_MANY = 10
"""Number of different labels from which numbers with fractions are taken for scores."""


@dataclass(frozen=True)
class FileTask(Task):
    """A task of the user's own files.

    Attributes:
        head: name of the head, which cannot be that of a file: names of modules have no dots.
    """

    head: str = SENTENCE_HEAD


def make_task(table: Table, columns: Sequence[str], label_column: str, regression: bool) -> FileTask:
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
    name = f"{'/'.join(table.path.resolve().with_suffix('').parts[-2:])} {label_column}"
    kind = (
        {"labels": (), "metrics": ("pearson", "spearman"), "score_range": (min(known), max(known))}
        if regression
        else {
            "labels": tuple(found),
            "metrics": ("accuracy",),
            "also_reported": ("f1" if len(found) == 2 else "macro_f1", "matthews"),
        }
    )
    return FileTask(name, tuple(columns), label_column, hub_columns=(), rows={}, test=(), **kind)


def to_rows(task: Task, table: Table, labelled: bool) -> Rows:
    """Return texts and labels of a table.

    Args:
        task: whose columns the table has.
        table: the file.
        labelled: whether to read labels.
    """
    rows = Rows(table.path, malformed=list(table.malformed))
    for line, record in table.rows:
        sentences = tuple(record.get(column) for column in task.columns)
        if unusable := [column for column in task.columns if not is_text(record.get(column))]:
            rows.malformed.append((line, f"the column {unusable[0]!r} is empty, or is not text"))
            continue
        if labelled:
            text = cell_text(record.get(task.label_column))
            label = _label(task, text)
            if label is None:
                rows.malformed.append((line, _label_problem(task, text)))
                continue
            rows.labels.append(label)
        rows.sentences.append(sentences)
    rows.malformed.sort()
    return rows


def describe(task: Task) -> str:
    """Return labels or range of the scores in words, for messages."""
    if task.is_regression:
        return "scores from {:g} to {:g}".format(*task.score_range)
    more = len(task.labels) - _SHOWN
    return f"{', '.join(task.labels[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def described_task(description: Any) -> FileTask | None:
    """Return the task that a bundle describes as ``finetuned_on``, for predictions; None if it does not.

    It has no columns if the model was imported. Bundles can hold anything there: its types are checked.
    """
    if not isinstance(description, Mapping):
        return None
    name, head, columns, labels, score_range = (
        description.get(key) for key in ("task", "head", "columns", "labels", "score_range")
    )
    if not (_all([name, head], str) and _all(columns, str) and len(columns) <= 2 and _all(labels, str)):
        return None
    if not labels and not (_all(score_range, int | float) and len(score_range) == 2):
        return None
    ranged = {} if labels else {"score_range": tuple(score_range)}
    return FileTask(name, tuple(columns), "", tuple(labels), hub_columns=(), metrics=(), rows={}, head=head, **ranged)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _label(task: Task, text: str) -> int | float | None:
    if task.is_regression:
        return number(text)
    return task.labels.index(text) if text in task.labels else None


def _label_problem(task: Task, text: str) -> str:
    place = f"in the column {task.label_column!r}"
    if not text.strip():
        return f"the label {place} is empty"
    if task.is_regression:
        return f"the label {text!r:.80} {place} is not a number"
    return f"the label {text!r:.80} {place} is none of the training file's: {describe(task)}"
