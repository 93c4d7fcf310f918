"""Rows of a sentence task: texts and labels of a table, and what is malformed."""

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.sentences.tasks import Task
from mae_lm_fairseq.text.tables import Table, cell_text
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

_MAX_SHOWN = 10
DROP = "or drop them with --skip-malformed"
BY_ROW = "as predictions are assigned by row (mae-lm predict --skip-malformed leaves those of empty texts empty)"


@dataclass
class Rows:
    """Rows of one set.

    Attributes:
        sentences: one or two sentences per row.
        labels: class numbers or scores; empty for rows without labels.
        malformed: (line, problem) of each malformed row; these rows are not in ``sentences`` and ``labels``.
    """

    path: Path
    sentences: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[int | float] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)

    def check(self, skip_malformed: bool = False, remedy: str = DROP) -> None:
        """Log malformed rows, if they may be skipped.

        Raises:
            UserError: if they may not, with what to do besides fixing the file; or if there are no other rows.
        """
        if not self.malformed:
            return
        count = len(self.malformed)
        problems = [f"line {line}: {problem}" for line, problem in self.malformed[:_MAX_SHOWN]]
        if count > _MAX_SHOWN:
            problems.append(f"and {count - _MAX_SHOWN} more")

        message = f"{self.path}: {count} malformed rows: {'; '.join(problems)}"
        if not (skip_malformed and self.sentences):
            raise UserError(f"{message}; fix the file, {remedy}")
        logger.warning("%s; skipped", message)


def to_rows(task: Task, table: Table, labelled: bool) -> Rows:
    """Return texts and, if they are wanted, labels of a table.

    Raises:
        UserError: if it lacks a column of the task.
    """
    table.check_columns((*task.columns, task.label_column) if labelled else task.columns)
    rows = Rows(table.path, malformed=list(table.malformed))
    for line, record in table.rows:
        try:
            sentences = tuple(_text(record, column) for column in task.columns)
            label = _label(task, record) if labelled else None
        except ValueError as error:
            rows.malformed.append((line, str(error)))
            continue
        rows.sentences.append(sentences)
        if labelled:
            rows.labels.append(label)
    rows.malformed.sort()
    return rows


def _text(record: dict[str, Any], column: str) -> str:
    text = record.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the column {column!r} is missing or empty, or is not text")
    return text


def label_text(cell: Any) -> str:
    """Return a label as text, without white space around it, which would make a class of its own.

    Raises:
        ValueError: if it is a list or an object, such as several labels for one text.
    """
    if isinstance(cell, list | dict):
        kind = "a list" if isinstance(cell, list) else "an object"
        raise ValueError(f"the label {cell_text(cell)!r:.80} is {kind}, not one label")
    return cell_text(cell).strip()


def parse_number(text: str) -> float | None:
    """Return the number that a text is, which may be infinite or NaN; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _label(task: Task, record: dict[str, Any]) -> int | float:
    """Return the class number or the score of a row.

    Raises:
        ValueError: if the row has no label, or one that is not of the task.
    """
    text = label_text(record.get(task.label_column))
    place = f"in the column {task.label_column!r}"
    if not text:
        raise ValueError(f"the label {place} is empty")
    if task.is_regression:
        return _score(task, text, place)
    if text not in task.labels:
        raise ValueError(f"the label {text!r:.80} {place} is not one of {task.describe()}")
    return task.labels.index(text)


def _score(task: Task, text: str, place: str) -> float:
    score = parse_number(text)
    is_valid = score is not None and math.isfinite(score)
    limits = ""
    if task.is_bounded:
        low, high = task.score_range
        is_valid = is_valid and low <= score <= high
        limits = f" from {low:g} to {high:g}"
    if not is_valid:
        raise ValueError(f"the label {text!r:.80} {place} is not a number{limits}")
    return score
