"""Table of the GLUE tasks, and their metrics.

Sources: column and file names are those of the official download (gluebenchmark.com) and of ``nyu-mll/glue`` on the
Hugging Face hub; the numbers of rows are those of the official files. Epochs, batch sizes and learning rates are
RoBERTa's (Liu et al. 2019, arXiv 1907.11692, Table 10: learning rates 1e-5, 2e-5 and 3e-5, batches of 16 and 32, 10
epochs). Of the two batch sizes, each task uses the one in fairseq's examples/roberta/README.glue.md. Metrics are GLUE's
(Wang et al. 2019, arXiv 1804.07461).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mae_lm_fairseq.utils.errors import UserError

SCORE_RANGE = 5.0
"""Maximum of STS-B's scores, which start at 0. Models are trained on scores / 5."""


@dataclass(frozen=True)
class Task:
    """A GLUE task.

    Attributes:
        name: name of the task and of its directory in the official layout.
        columns: sentence columns in the TSV files, one or two.
        label_column: label column in the TSV files.
        labels: label names in the TSV files, in class order; empty for regression.
        hub_columns: sentence columns in the Hugging Face layout.
        metrics: reported metrics, keys of :data:`METRICS`; the task's score is their mean.
        rows: numbers of rows of the official training, development and test sets.
        batch_size: sentences or pairs per update.
        dev, test: official names of the sets, in the order of fairseq's valid, valid1 and test, test1.
        headerless: whether the training and development sets have four columns and no header.
        epochs: passes over the training set.
        learning_rates: the learning rates to try.
        score_range: the scores that a model for regression is trained to give as 0 and as 1.
        also_reported: further metrics, which are not part of the task's score.
    """

    name: str
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    hub_columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: Mapping[str, int]
    batch_size: int = 32
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)
    headerless: bool = False
    epochs: int = 10
    learning_rates: tuple[float, ...] = (1e-5, 2e-5, 3e-5)
    score_range: tuple[float, float] = (0.0, SCORE_RANGE)
    also_reported: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Name of the classification head."""
        return self.name

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_classes(self) -> int:
        return len(self.labels) or 1

    @property
    def splits(self) -> dict[str, str]:
        """Mapping from fairseq's names of the sets to the official ones."""
        numbered = {"train": "train"}
        for split, official in (("valid", self.dev), ("test", self.test)):
            numbered |= {f"{split}{number or ''}": name for number, name in enumerate(official)}
        return numbered

    def to_unit(self, score: float) -> float:
        """Scale a score to what the model is trained on."""
        low, high = self.score_range
        return (score - low) / (high - low)

    def from_unit(self, values: np.ndarray) -> np.ndarray:
        """Scale a model's outputs to scores."""
        low, high = self.score_range
        return low + values * (high - low)

    def submission_file(self, split: str) -> str:
        """Return the file name that the GLUE server expects for a test set, given fairseq's name of the set."""
        return {"test": "MNLI-m.tsv", "test1": "MNLI-mm.tsv"}[split] if self.name == "MNLI" else f"{self.name}.tsv"


def _rows(train: int, dev: int, test: int) -> dict[str, int]:
    return {"train": train, "dev": dev, "test": test}


_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")

TASKS = {
    task.name: task
    for task in (
        Task(
            "CoLA", ("sentence",), "label", ("0", "1"), ("sentence",), ("matthews",), _rows(8551, 1043, 1063),
            batch_size=16, headerless=True,
        ),
        Task("SST-2", ("sentence",), "label", ("0", "1"), ("sentence",), ("accuracy",), _rows(67349, 872, 1821)),
        Task(
            "MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), _PAIR, ("f1", "accuracy"),
            _rows(3668, 408, 1725), batch_size=16,
        ),
        Task(
            "STS-B", _PAIR, "score", (), _PAIR, ("pearson", "spearman"), _rows(5749, 1500, 1379), batch_size=16,
        ),
        Task(
            "QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), ("question1", "question2"),
            ("f1", "accuracy"), _rows(363846, 40430, 390965),
        ),
        Task(
            "MNLI", _PAIR, "gold_label", ("entailment", "neutral", "contradiction"), ("premise", "hypothesis"),
            ("accuracy",),
            _rows(392702, 9815, 9796) | {"dev_matched": 9815, "dev_mismatched": 9832}
            | {"test_matched": 9796, "test_mismatched": 9847},
            dev=("dev_matched", "dev_mismatched"), test=("test_matched", "test_mismatched"),
        ),
        Task(
            "QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("question", "sentence"), ("accuracy",),
            _rows(104743, 5463, 5463),
        ),
        Task("RTE", _PAIR, "label", _ENTAILMENT, _PAIR, ("accuracy",), _rows(2490, 277, 3000), batch_size=16),
        Task("WNLI", _PAIR, "label", ("0", "1"), _PAIR, ("accuracy",), _rows(635, 71, 146), batch_size=16),
    )
}  # fmt: skip

FROM_MNLI = ("MRPC", "RTE", "STS-B")
"""Tasks that the RoBERTa paper starts from a model fine-tuned on MNLI."""


def find_task(name: str) -> Task:
    """Return the task with the given name, ignoring case.

    Raises:
        UserError: if no task has this name.
    """
    for task in TASKS.values():
        if name.lower() == task.name.lower():
            return task
    raise UserError(f"{name} is not a task of GLUE; choose one of {', '.join(TASKS)}")


# ---------------------------------------------------------------------------------------------------------- metrics


def _accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    return np.mean(predicted == true)


def _agreement(name: str, **options) -> Callable[[np.ndarray, np.ndarray], float]:
    def agree(predicted: np.ndarray, true: np.ndarray) -> float:
        from sklearn import metrics

        return getattr(metrics, name)(true, predicted, **options)

    return agree


def _correlation(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def correlate(predicted: np.ndarray, true: np.ndarray) -> float:
        from scipy import stats

        if np.ptp(predicted) == 0 or np.ptp(true) == 0:
            return 0.0  # the correlation with a constant is undefined
        return getattr(stats, name)(predicted, true).statistic

    return correlate


METRICS = {
    "matthews": _agreement("matthews_corrcoef"),
    "accuracy": _accuracy,
    "f1": _agreement("f1_score", zero_division=0.0),
    "macro_f1": _agreement("f1_score", average="macro", zero_division=0.0),
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}
"""Metrics as functions (predictions, true values) -> value, from scikit-learn and scipy, which are installed with
fairseq."""


def predictions(task: Task, logits: np.ndarray) -> np.ndarray:
    """Convert logits to predictions: classes, or scores for STS-B.

    Args:
        task: the task.
        logits: [rows, classes], or [rows, 1] for regression.

    Returns:
        [rows]: class numbers, or scores that go roughly over the task's range.
    """
    if task.is_regression:
        return task.from_unit(logits[:, 0].astype(np.float64))
    return logits.argmax(1)


def score(task: Task, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return the task's metrics in per cent, given predictions and true values, both of shape [rows]."""
    return _computed(task.metrics, predicted, true)


def further_metrics(task: Task, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return in per cent the metrics that are not part of the task's score, for the arguments of :func:`score`."""
    return _computed(task.also_reported, predicted, true)


def _computed(names: Sequence[str], predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    return {name: 100 * float(METRICS[name](predicted, true)) for name in names}


# ------------------------------------------------------------------------------------------------------- submission


def submission(task: Task, predicted: Sequence) -> str:
    """Return test set predictions in the format of the GLUE server: row numbers with label names or scores up to 5."""
    if task.is_regression:
        named = [f"{min(max(value, 0.0), SCORE_RANGE):.3f}" for value in predicted]
    else:
        named = [task.labels[value] for value in predicted]
    return "index\tprediction\n" + "".join(f"{index}\t{name}\n" for index, name in enumerate(named))
