"""Facts about a model's training: ``about`` in a bundle's ``config.json``, validated once, when a model is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES

Number = int | float
"""A number that stays as it was written."""
MULTI_LABEL = "multi_label_classification"
"""``problem_type`` of a head that gives a text several labels at once."""
_OF_A_TRAINING = ("task", "updates", "versions", "dictionary_sha256", "trained_on", "mask_in_encoder")
"""Fields that a bundle of a trained model has even if they are null."""


@dataclass(frozen=True)
class SentenceTask:
    """Classification or regression of texts, or of pairs.

    Attributes:
        columns: columns of the texts in the training file, one or two; empty if they are not known.
        labels: names of the classes; empty for regression.
        score_range: the scores that a head for regression gives as 0 and as 1; None for classification.
    """

    task: str
    head: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    score_range: tuple[Number, Number] | None = None

    def __post_init__(self):
        low, high = self.score_range or (0, 1)
        is_range = math.isfinite(high - low) and low < high
        if len(self.columns) > 2 or not is_range:
            raise ValueError(f"columns {self.columns} or score_range {self.score_range} are invalid")
        if not self.labels and self.score_range is None:
            raise ValueError("there are neither labels nor a score_range")


@dataclass(frozen=True)
class WordTask:
    """Labels of words.

    Attributes:
        labels: names of the labels in class order.
        column: column of the labels in the training file, by name or number; None if it is not known.
        tokens_per_sample: maximum number of tokens of a sequence; None for the model's.
        scheme: scheme of the labels; None if it is not known.
    """

    column: str | None = None
    tokens_per_sample: int | None = None
    labels: tuple[str, ...] = ()
    scheme: str | None = None


@dataclass(frozen=True)
class AnswerTask:
    """Extractive question answering.

    Attributes:
        tokens_per_sample: maximum number of tokens of a window.
        doc_stride: tokens between the starts of two windows.
        version_2: whether questions may have no answer, as in SQuAD 2.0.
    """

    tokens_per_sample: int
    doc_stride: int
    version_2: bool

    def __post_init__(self):
        if self.doc_stride < 1:
            raise ValueError(f"doc_stride is {self.doc_stride}")


@dataclass(frozen=True)
class ModelInfo:
    """Facts about the training of a model, as far as they are known.

    Attributes:
        architecture: the architecture in pretraining, a key of :data:`~mae_lm_fairseq.core.config.ARCHITECTURES`.
        trained_on: statistics of the splits, from the manifest of the data-bin.
        mask_in_encoder: value of ``--mask-in-encoder`` in pretraining; None if unknown, as after fine-tuning.
        tokens_per_sample: maximum length of a sequence in pretraining, in tokens.
        other_tokens: fraction of the predicted positions that had random or kept tokens instead of ``[MASK]``.
        averaged: how, if the weights are an average.
        problem_type: :data:`MULTI_LABEL`, of an import with such a head.
        untrained: parts that an import had to add.
    """

    architecture: str | None = None
    imported_from: str | None = None
    task: str | None = None
    updates: int | None = None
    versions: Mapping[str, str] | None = None
    dictionary_sha256: str | None = None
    trained_on: Mapping[str, Mapping[str, Number]] | None = None
    mask_in_encoder: Number | None = None
    tokens_per_sample: int | None = None
    other_tokens: Number | None = None
    averaged: str | None = None
    finetuned_on: SentenceTask | WordTask | AnswerTask | None = None
    development_set: Mapping[str, Number] | None = None
    problem_type: str | None = None
    untrained: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("mask_in_encoder", "other_tokens"):
            fraction = getattr(self, name)
            if not 0 <= (fraction or 0) <= 1:
                raise ValueError(f"{name} is {fraction}, not a fraction")
        if self.problem_type not in (None, MULTI_LABEL):
            raise ValueError(f"problem_type is {self.problem_type!r}")
        if self.architecture not in (None, *ARCHITECTURES):
            raise ValueError(f"architecture is {self.architecture!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON. What is not known is missing, or null for a model that was trained here."""
        is_trained = bool(self.versions)
        facts = {}
        for name, value in vars(self).items():
            if value not in (None, ()) or (is_trained and name in _OF_A_TRAINING):
                facts[name] = value
        task = facts.get("finetuned_on")
        if task is not None:
            values = vars(task).items()
            facts["finetuned_on"] = {name: value for name, value in values if is_trained or value is not None}
        return facts

    def labels_of(self, head: str) -> tuple[str, ...]:
        """Return the names of a head's classes; empty if they are not known."""
        task = self.finetuned_on
        if isinstance(task, WordTask) or self._is_of(head):
            return task.labels
        return ()

    def score_range_of(self, head: str) -> tuple[Number, Number] | None:
        """Return the scores that a head for regression gives as 0 and as 1; None if they are not known."""
        return self.finetuned_on.score_range if self._is_of(head) else None

    def _is_of(self, head: str) -> bool:
        """Return whether a head classifies the sentences of the model's task."""
        return isinstance(self.finetuned_on, SentenceTask) and self.finetuned_on.head == head
