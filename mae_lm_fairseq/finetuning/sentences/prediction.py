"""Predictions of sentence classification and regression for the rows of a file."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mae_lm_fairseq.finetuning.sentences.encoding import encode, join, sequence_length, truncate
from mae_lm_fairseq.finetuning.sentences.rows import BY_ROW, to_rows
from mae_lm_fairseq.finetuning.sentences.tasks import Task, predictions
from mae_lm_fairseq.text.tables import TEXT_COLUMN, WRITTEN, Table, read_table, write_table, written_table
from mae_lm_fairseq.trained.info import MULTI_LABEL, SentenceTask
from mae_lm_fairseq.trained.logits import by_length, with_progress
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

BATCH = 64
PREDICTION, PROBABILITY = "prediction", "probability_"
"""The column of the predicted label or score, and the start of the names of those of the labels' probabilities."""


def predict_file(
    model: torch.nn.Module,
    source: Path,
    out: Path,
    text: str | None = None,
    text_pair: str | None = None,
    skip_malformed: bool = False,
) -> None:
    """Write the rows of a file with their predictions by the hub interface of a fine-tuned model.

    Args:
        text, text_pair: columns of the texts; by default those of the training file.
        skip_malformed: leave the predictions of rows with an empty text empty.

    Raises:
        UserError: if the model's labels are not known, or the files do not suit it.
    """
    if out.suffix.lower() not in WRITTEN:  # before the work
        raise UserError(f"{out}: predictions are written to a file that ends in {', '.join(WRITTEN)}")
    task = task_of(model)
    table = read_table(source)
    if text_pair and len(task.columns) == 1:
        raise UserError(f"--text-pair {text_pair}: the model was fine-tuned on single texts; leave it out")
    first, *second = columns_of(table, task.columns or (TEXT_COLUMN,))
    columns = (text or first, *([text_pair] if text_pair else second))
    predict_table(model, replace(task, columns=columns), table, out, skip_malformed)


def columns_of(table: Table, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of the texts in a table, given those of the training file."""
    return (TEXT_COLUMN, *columns[1:]) if table.is_plain_text else columns


def predict_table(
    model: torch.nn.Module, task: Task, table: Table, out: Path, skip_malformed: bool = False
) -> np.ndarray:
    """Write the rows of a table with their predictions, and return the logits [predicted rows, classes].

    Raises:
        UserError: if a text is missing, the table has one of the columns already, or ``out`` cannot be written.
    """
    rows = to_rows(task, table, labelled=False)
    rows.check(skip_malformed and not table.malformed, BY_ROW)
    check_room_for_predictions(table, task, out)
    logits = sentence_logits(model, task, rows.sentences)
    cells = iter(named_predictions(task, logits))
    skipped = dict(rows.malformed)
    predicted = []
    for line, row in table.rows:
        predicted.append(row if line in skipped else row | next(cells))
    write_table(out, [*table.columns, *prediction_columns(task)], predicted)
    return logits


def check_room_for_predictions(table: Table, task: Task, out: Path) -> None:
    """Check, before the work, that predictions can be written to ``out`` beside the cells of a table.

    Raises:
        UserError: if the table has one of their columns already, or the format of ``out`` cannot hold a cell or label.
    """
    new_columns = prediction_columns(task)
    for column in new_columns:
        if column in table.columns:
            raise UserError(f"{table.path}: has a column {column!r} already; rename or remove it")
    rows = [row for _, row in table.rows]
    labels = [{PREDICTION: label} for label in task.labels]
    written_table(out, [*table.columns, *new_columns], [*rows, *labels])


def prediction_columns(task: Task) -> list[str]:
    """Return the names of the columns that predictions add."""
    return [PREDICTION, *(PROBABILITY + label for label in task.labels)]


def named_predictions(task: Task, logits: np.ndarray) -> list[dict[str, Any]]:
    """Return the cells of :func:`prediction_columns` for logits [rows, classes]: labels by name, numbers rounded."""
    predicted = predictions(task, logits)
    if task.is_regression:
        return [{PREDICTION: _rounded(score)} for score in predicted]
    columns = prediction_columns(task)
    probabilities = torch.from_numpy(logits).double().softmax(1).tolist()
    rows = []
    for label, row in zip(predicted, probabilities, strict=True):
        cells = [task.labels[label], *map(_rounded, row)]
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def sentence_logits(model: torch.nn.Module, task: Task, sentences: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Return logits [rows, classes], computed in batches of similar length, the longest first."""
    encoded = encode(sentences, model.tokenizer)
    limit = model.model.max_positions()
    too_long = sum(sequence_length(row) > limit for row in encoded)
    if too_long:
        logger.warning("%d rows are longer than the model's %d positions; their ends are ignored", too_long, limit)
    ids = [torch.from_numpy(join(truncate(row, limit))) for row in encoded]
    logits = np.empty((len(ids), task.num_classes), dtype=np.float32)
    longest_first = by_length([-len(row) for row in ids], BATCH)
    for rows in with_progress(longest_first):
        batch = model.predict(task.head, [ids[row] for row in rows], return_logits=True)
        logits[rows] = batch.cpu().numpy()
    return logits


def task_of(model: torch.nn.Module) -> Task:
    """Return the task that a model was fine-tuned on.

    The task has no columns if the model was imported.

    Raises:
        UserError: if it does not know the names of its labels, or gives a text several of them at once.
    """
    if model.about.problem_type == MULTI_LABEL:
        raise UserError(
            "the model gives a text several labels at once, which this command does not; MAELMModel.predict gives "
            "their logits with return_logits=True"
        )
    task = model.about.finetuned_on
    if not isinstance(task, SentenceTask):
        raise UserError(
            "the model does not know the names of its labels; for one of mae-lm finetune, name the data-bin/ in its "
            "--out as --data-bin, for a bundle when it is made"
        )
    return Task(
        name=task.task,
        columns=task.columns,
        label_column="",
        labels=task.labels,
        score_range=task.score_range,
        head_name=task.head,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
