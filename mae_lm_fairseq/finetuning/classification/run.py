"""Fine-tuning on the user's own files: the sweep, evaluation and report of GLUE's tasks."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mae_lm_fairseq.finetuning.classification.prediction import check_predictable, plain_text_column, predict_table
from mae_lm_fairseq.finetuning.classification.tables import Table, cell_text, read_table
from mae_lm_fairseq.finetuning.classification.task import describe, make_task, to_rows
from mae_lm_fairseq.finetuning.glue.files import number
from mae_lm_fairseq.finetuning.glue.preparation import prepare_rows
from mae_lm_fairseq.finetuning.glue.run import prepare_once, report_of, run_task
from mae_lm_fairseq.finetuning.glue.tasks import Task, further_metrics, predictions, score
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.prediction import open_finetuned
from mae_lm_fairseq.finetuning.sweep import (
    MODEL,
    OWNED,
    find_pretrained_origin,
    prediction_names,
    remove_predictions,
)
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.training.runner import reserve
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_results


@dataclass(frozen=True, kw_only=True)
class Options(FinetuningOptions):
    """Options besides those of all tasks.

    Attributes:
        train, dev: files, see :mod:`~mae_lm_fairseq.finetuning.classification.tables`.
        test: a file to predict with the best model; also to evaluate it on, if the file has labels.
        text: column of the text, or of the first text of a pair.
        text_pair: column of the second text.
        label: column of the label or score.
        regression: whether labels are scores even if all are integers.
        skip_malformed: whether to leave malformed rows out of training and development files.
    """

    train: Path
    dev: Path
    test: Path | None = None
    text: str
    text_pair: str | None = None
    label: str
    regression: bool = False
    skip_malformed: bool = False


def finetune(options: Options) -> dict:
    """Run or resume the fine-tuning; return the content of ``results.json``.

    Raises:
        UserError: nothing was overwritten; the message says why.
    """
    out = options.out
    files = {"train": options.train, "dev": options.dev} | ({"test": options.test} if options.test else {})
    tables = {name: read_table(path) for name, path in files.items()}
    task = _task(options, tables)
    if options.test:
        test = _TestFile(task, tables.pop("test"), out)
    origin = find_pretrained_origin(options.checkpoint, options.arch)
    tokenizer = open_tokenizer(options.tokenizer, options.checkpoint, origin.dictionary)
    reserve(
        out,
        {
            # Not the test file: one that is added or corrected later is predicted by the models of the finished runs.
            **{f"{name} file": file_sha256(files[name]) for name in tables},
            "columns": [options.text, options.text_pair, options.label],
            "regression": task.is_regression,
            "checkpoint": origin.described(),
            "tokenizer": tokenizer.fingerprint,
            "updates": options.max_updates,
        },
        owned=("data-bin", *OWNED, *prediction_names("test")),
    )
    print(f"{'scores' if task.is_regression else 'labels'}: {describe(task)}")

    def make(data: Path) -> dict:
        rows = {name: to_rows(task, table, labelled=True) for name, table in tables.items()}
        return prepare_rows(task, rows.get, tokenizer, data, origin.max_positions, options.skip_malformed)

    data, statistics = prepare_once(out / "data-bin", make)
    content, chosen = run_task(task, options, origin, data, statistics)
    content["files"] = {name: "/".join(path.resolve().parts[-2:]) for name, path in files.items()}
    content["labels"] = list(task.labels)
    remarks = [f"`f1` refers to the label {task.labels[1]}."] if "f1" in task.also_reported else []
    if options.test:
        content["test_metrics"] = test.predict()
        found = ", ".join(f"{name} {value:.1f}" for name, value in content["test_metrics"].items())
        remarks.append(f"Test predictions: {chosen.name}" + (f" ({found})." if found else "."))
    remove_predictions(out, "test", test.predictions if options.test else None)
    write_results(out, content, report_of(content, *remarks))
    return content


def _task(options: Options, tables: Mapping[str, Table]) -> Task:
    """Return the task of the training file, once all files have its columns; a test file needs no labels."""
    texts = {"--text": options.text} | ({"--text-pair": options.text_pair} if options.text_pair is not None else {})
    columns = texts | {"--label": options.label}
    for (first, column), (second, other) in itertools.combinations(columns.items(), 2):
        if column == other:
            raise UserError(f"{first} and {second} both name the column {column!r}; give each a column of its own")
    for name, table in tables.items():
        if name != "test":
            table.check_columns(columns)
        elif not table.is_plain_text:
            table.check_columns(texts)
    task = make_task(tables["train"], list(texts.values()), options.label, options.regression)
    if task.is_regression:
        _check_scores(tables["dev"], options.label)
    return task


def _check_scores(dev: Table, label: str):
    """Refuse a development file with equal scores: without a correlation, no model is better than another."""
    scores = {number(cell_text(row.get(label))) for _, row in dev.rows} - {None}
    if len(scores) == 1:
        raise UserError(
            f"{dev.path}: every score in the column {label!r} is {scores.pop():g}, so there is no correlation; "
            "use a development file with different scores"
        )


class _TestFile:
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
        self.predictions = out / f"test_predictions{'.jsonl' if table.is_plain_text else table.path.suffix.lower()}"
        check_predictable(self.task, table, self.predictions)
        self.rows = to_rows(self.task, table, labelled=_has_labels(task, table))
        if self.rows.malformed:
            raise UserError(
                f"{table.path}: {len(self.rows.malformed)} malformed rows: {self.rows.describe_malformed()}; fix the "
                f"file, or remove the column {task.label_column!r} to predict only"
            )

    def predict(self) -> dict[str, float]:
        """Write the predictions, and return the metrics, none if the file has no labels."""
        logits = predict_table(open_finetuned(self.model), self.task, self.table, self.predictions)
        if not self.rows.labels:
            return {}
        predicted, true = predictions(self.task, logits), np.array(self.rows.labels)
        return score(self.task, predicted, true) | further_metrics(self.task, predicted, true)


def _has_labels(task: Task, table: Table) -> bool:
    """Return whether a test file has labels. In the hub's files of GLUE, every label of a test set is -1."""
    if table.is_plain_text:
        return False
    found = {cell_text(row.get(task.label_column)).strip() for _, row in table.rows}
    return not found <= {"", "-1", "-1.0"} - set(task.labels)
