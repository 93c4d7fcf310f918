"""Sentence tasks: what defines one, and the table of GLUE's.

Sources: column and file names are those of the official download (gluebenchmark.com) and of ``nyu-mll/glue`` on the
Hugging Face hub; the numbers of rows are those of the official files. Epochs, batch sizes and learning rates are
RoBERTa's (Liu et al. 2019, arXiv 1907.11692, Table 10: learning rates 1e-5, 2e-5 and 3e-5, batches of 16 and 32, 10
epochs). Of the two batch sizes, each task uses the one in fairseq's examples/roberta/README.glue.md. Metrics are GLUE's
(Wang et al. 2019, arXiv 1804.07461).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mae_lm_fairseq.finetuning.recipes import Recipe
from mae_lm_fairseq.utils.errors import UserError

ROBERTA_ON_GLUE = Recipe((1e-5, 2e-5, 3e-5), batch_size=32, weight_decay=0.1, epochs=10)
_SHOWN = 10

SELECTIONS = {
    "accuracy": {},
    "loss": {},
    "mcc": {"report_mcc": True},
    "acc_and_f1": {"report_acc_and_f1": True},
    "f1": {"report_acc_and_f1": True},
    "pearson_and_spearman": {"report_pearson_and_spearman": True},
}
"""Metrics that fairseq's criterion ``sentence_prediction`` can compute in validation, and the option that it needs."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Classification or regression of sentences, or of pairs.

    Attributes:
        columns: columns of the sentences, one or two.
        label_column: column of the label or score.
        labels: names of the labels in class order; empty for regression.
        metrics: reported metrics, keys of :data:`~mae_lm_fairseq.finetuning.sentences.metrics.METRICS`; their mean, the
            score, selects the learning rate.
        also_reported: further metrics, which are not part of the score.
        selection: metric of fairseq's validation that selects the checkpoint of a run, a key of
            :data:`SELECTIONS`.
        score_range: the scores that a model for regression is trained to give as 0 and as 1.
        is_bounded: whether scores outside of this range are malformed.
        dev_suffixes: ending of the metrics' names by development set, named as by fairseq.
        batch_size: sentences or pairs per update.
        head_name: name of the classification head, if it is not that of the task, which may have dots; the head is a
            module.
    """

    name: str
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    also_reported: tuple[str, ...] = ()
    selection: str = "accuracy"
    score_range: tuple[float, float] | None = None
    is_bounded: bool = False
    dev_suffixes: Mapping[str, str] = field(default_factory=lambda: {"valid": ""})
    batch_size: int = ROBERTA_ON_GLUE.batch_size
    head_name: str | None = None

    @property
    def head(self) -> str:
        """Name of the classification head."""
        return self.head_name or self.name

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_classes(self) -> int:
        return len(self.labels) or 1

    @property
    def all_metrics(self) -> tuple[str, ...]:
        return (*self.metrics, *self.also_reported)

    @property
    def recipe(self) -> Recipe:
        """RoBERTa's, for every size of model: tiny and small need higher ``--learning-rates``."""
        return replace(ROBERTA_ON_GLUE, batch_size=self.batch_size)

    def to_unit(self, score: float) -> float:
        """Scale a score to what the model is trained on."""
        low, high = self.score_range
        return (score - low) / (high - low)

    def from_unit(self, values: np.ndarray) -> np.ndarray:
        """Scale a model's outputs to scores."""
        low, high = self.score_range
        return low + values * (high - low)

    def describe(self) -> str:
        """Return the labels, or the range of the scores, in words."""
        if self.is_regression:
            return "scores from {:g} to {:g}".format(*self.score_range)
        shown = ", ".join(self.labels[:_SHOWN])
        more = len(self.labels) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown


def predictions(task: Task, logits: np.ndarray) -> np.ndarray:
    """Convert logits, [rows, classes], to class numbers; or [rows, 1] to scores roughly in the range of the task."""
    if task.is_regression:
        return task.from_unit(logits[:, 0].astype(np.float64))
    return logits.argmax(1)


@dataclass(frozen=True, kw_only=True)
class GlueTask(Task):
    """A task of GLUE, with its files.

    Attributes:
        label_column: column of the label or score in the official layout.
        hub_columns: columns of the sentences in the Hugging Face layout; by default those of the official one.
        splits: official names of the sets, by fairseq's.
        rows: numbers of rows of the official sets, if they are known.
        submissions: names of the files that the GLUE server expects, by fairseq's name of the test set; by default,
            there is one with the name of the task.
        headerless: whether the training and development sets have four columns and no header.
    """

    label_column: str = "label"
    hub_columns: tuple[str, ...] = ()
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "valid": "dev", "test": "test"})
    rows: Mapping[str, int] = field(default_factory=dict)
    submissions: Mapping[str, str] = field(default_factory=dict)
    headerless: bool = False

    @property
    def submission_files(self) -> Mapping[str, str]:
        """File name that the GLUE server expects for each test set, by fairseq's name of the set."""
        return self.submissions or {"test": f"{self.name}.tsv"}


_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_PAIR = ("sentence1", "sentence2")

TASKS = {
    task.name: task
    for task in (
        GlueTask(
            name="CoLA", columns=("sentence",), labels=_BINARY, metrics=("matthews",),
            selection="mcc", batch_size=16, headerless=True, rows={"train": 8551, "dev": 1043, "test": 1063},
        ),
        GlueTask(
            name="SST-2", columns=("sentence",), labels=_BINARY,
            rows={"train": 67349, "dev": 872, "test": 1821},
        ),
        GlueTask(
            name="MRPC", columns=("#1 String", "#2 String"), label_column="Quality", labels=_BINARY,
            metrics=("f1", "accuracy"), selection="acc_and_f1", batch_size=16, hub_columns=_PAIR,
            rows={"train": 3668, "dev": 408, "test": 1725},
        ),
        GlueTask(
            name="STS-B", columns=_PAIR, label_column="score", labels=(), metrics=("pearson", "spearman"),
            selection="pearson_and_spearman", score_range=(0.0, 5.0), is_bounded=True, batch_size=16,
            rows={"train": 5749, "dev": 1500, "test": 1379},
        ),
        GlueTask(
            name="QQP", columns=("question1", "question2"), label_column="is_duplicate", labels=_BINARY,
            metrics=("f1", "accuracy"), selection="acc_and_f1",
            rows={"train": 363846, "dev": 40430, "test": 390965},
        ),
        GlueTask(
            name="MNLI", columns=_PAIR, label_column="gold_label", labels=("entailment", "neutral", "contradiction"),
            dev_suffixes={"valid": "", "valid1": "_mismatched"}, hub_columns=("premise", "hypothesis"),
            splits={
                "train": "train", "valid": "dev_matched", "valid1": "dev_mismatched",
                "test": "test_matched", "test1": "test_mismatched",
            },
            rows={
                "train": 392702, "dev_matched": 9815, "dev_mismatched": 9832,
                "test_matched": 9796, "test_mismatched": 9847,
            },
            submissions={"test": "MNLI-m.tsv", "test1": "MNLI-mm.tsv"},
        ),
        GlueTask(
            name="QNLI", columns=("question", "sentence"), labels=_ENTAILMENT,
            rows={"train": 104743, "dev": 5463, "test": 5463},
        ),
        GlueTask(
            name="RTE", columns=_PAIR, labels=_ENTAILMENT, batch_size=16,
            rows={"train": 2490, "dev": 277, "test": 3000},
        ),
        GlueTask(
            name="WNLI", columns=_PAIR, labels=_BINARY, batch_size=16,
            rows={"train": 635, "dev": 71, "test": 146},
        ),
    )
}  # fmt: skip


def find_task(name: str) -> GlueTask:
    """Return the task with the given name, ignoring case.

    Raises:
        UserError: if no task has this name.
    """
    for known, task in TASKS.items():
        if name.lower() == known.lower():
            return task
    raise UserError(f"{name} is not a task of GLUE; choose one of {', '.join(TASKS)}")
