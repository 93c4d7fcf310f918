"""Fine-tuning by a plain loop around transformers, as a peer of ``mae-lm finetune``."""

import mae_lm_fairseq.trained.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BatchEncoding,
    set_seed,
)

from mae_lm_fairseq.finetuning.sentences.metrics import compute_metrics
from mae_lm_fairseq.finetuning.sentences.rows import Rows
from mae_lm_fairseq.finetuning.sentences.tasks import Task, predictions
from mae_lm_fairseq.text.word_files import WordFile
from mae_lm_fairseq.text.word_labels import OUTSIDE, learn_labels
from mae_lm_fairseq.finetuning.tagging.metrics import in_per_cent, ratios
from mae_lm_fairseq.text.word_windows import IGNORED
from mae_lm_fairseq.training.command import warmup_updates
from mae_lm_fairseq.utils.output import progress_bar

VALIDATION_BATCH = 64


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Args:
        learning_rate: maximum learning rate; it warms up over the first 6 % of the updates, then falls to 0.
        weight_decay: of every weight, as in fairseq, biases and layer norms included.
    """

    model: Path
    learning_rate: float
    updates: int
    batch_size: int
    weight_decay: float


class FineTuning(ABC):
    """One run: a model, its data and its optimizer."""

    selects_best = False
    """Whether the result is the best of the evaluations after every epoch, rather than that of the last update."""

    def __init__(self, auto_class: type, classes: int, rows: int, settings: Settings, seed: int):
        set_seed(seed)
        self.settings, self.rows = settings, rows
        self.random = np.random.default_rng(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(settings.model)
        self.model = auto_class.from_pretrained(settings.model, num_labels=classes)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            settings.learning_rate,
            betas=(0.9, 0.98),
            eps=1e-6,
            weight_decay=settings.weight_decay,
        )
        updates, warmup = settings.updates, warmup_updates(settings.updates)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / max(warmup, 1), (updates - step) / max(updates - warmup, 1))
        )

    @abstractmethod
    def loss(self, chosen: np.ndarray) -> torch.Tensor:
        """Return the mean loss of the chosen rows of the training set."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the development set in per cent, and ``score``, by which runs are compared."""

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the rows of every update, shuffled in each epoch."""
        while True:
            order = self.random.permutation(self.rows)
            for first in range(0, self.rows, self.settings.batch_size):
                yield order[first : first + self.settings.batch_size]

    def update(self, chosen: np.ndarray) -> None:
        """Train on one batch."""
        self.model.train()
        self.optimizer.zero_grad()
        self.loss(chosen).backward()
        self.optimizer.step()
        self.schedule.step()

    def run(self, name: str) -> dict[str, float]:
        """Train and return the metrics."""
        updates, epoch, found = self.settings.updates, math.ceil(self.rows / self.settings.batch_size), []
        steps = zip(range(1, updates + 1), self.batches(), strict=False)
        for step, chosen in progress_bar(steps, desc=name, total=updates):
            self.update(chosen)
            if step == updates or (self.selects_best and step % epoch == 0):
                self.model.eval()
                with torch.no_grad():
                    found.append(self.evaluate())
        return max(found, key=lambda metrics: metrics["score"])


class SentenceClassification(FineTuning):
    """Fine-tuning on a task of GLUE."""

    selects_best = True

    def __init__(self, task: Task, data: Mapping[str, Rows], settings: Settings, seed: int):
        """Prepare a run on the rows of ``train`` and ``valid``."""
        super().__init__(
            AutoModelForSequenceClassification, task.num_classes, len(data["train"].labels), settings, seed
        )
        self.task, self.data = task, data

    def inputs(self, rows: Rows, chosen: np.ndarray) -> BatchEncoding:
        """Return the batch of the chosen rows."""
        sentences = map(list, zip(*(rows.sentences[row] for row in chosen), strict=True))
        return self.tokenizer(*sentences, truncation=True, max_length=512, padding=True, return_tensors="pt")

    def loss(self, chosen: np.ndarray) -> torch.Tensor:
        logits = self.model(**self.inputs(self.data["train"], chosen)).logits
        labels = torch.tensor([self.data["train"].labels[row] for row in chosen])
        if self.task.is_regression:
            targets = torch.tensor([self.task.to_unit(float(label)) for label in labels])
            return torch.nn.functional.mse_loss(logits[:, 0], targets)
        return torch.nn.functional.cross_entropy(logits, labels)

    def evaluate(self) -> dict[str, float]:
        rows = self.data["valid"]
        parts = validation_batches(len(rows.labels))
        logits = np.concatenate([self.model(**self.inputs(rows, part)).logits.numpy() for part in parts])
        metrics = compute_metrics(self.task.metrics, predictions(self.task, logits), np.array(rows.labels))
        return {**metrics, "score": fmean(metrics.values())}


class WordClassification(FineTuning):
    """Fine-tuning on labelled words: the first subword of each word has the label.

    Sentences are truncated at 512 subwords. Words behind that, and those without a subword, are outside of entities, or
    count as wrong if there are none.
    """

    def __init__(self, train: WordFile, dev: WordFile, settings: Settings, seed: int):
        self.labels = learn_labels(train)
        self.train, self.dev, self.targets = train, dev, self.labels.targets(train)
        super().__init__(AutoModelForTokenClassification, len(self.labels.names), len(train.sentences), settings, seed)

    def inputs(self, file: WordFile, chosen: np.ndarray) -> BatchEncoding:
        """Return the batch of the chosen sentences."""
        words = [list(file.words[row]) for row in chosen]
        return self.tokenizer(
            words, is_split_into_words=True, truncation=True, max_length=512, padding=True, return_tensors="pt"
        )

    def loss(self, chosen: np.ndarray) -> torch.Tensor:
        inputs = self.inputs(self.train, chosen)
        targets = torch.full(inputs["input_ids"].shape, IGNORED)
        for row, sentence in enumerate(chosen):
            for position, word in first_subwords(inputs, row):
                targets[row, position] = self.targets[sentence][word]
        logits = self.model(**inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def evaluate(self) -> dict[str, float]:
        parts = validation_batches(len(self.dev.sentences))
        predicted = [labels for part in parts for labels in self.predicted(part)]
        found = in_per_cent(ratios(self.labels, predicted, self.dev.labels))
        return {**found, "score": found["f1" if self.labels.kinds else "accuracy"]}

    def predicted(self, chosen: np.ndarray) -> list[list[str]]:
        """Return the labels of the chosen sentences of the development file."""
        inputs = self.inputs(self.dev, chosen)
        best = self.model(**inputs).logits.argmax(-1)
        missing = OUTSIDE if self.labels.scheme else ""  # an empty label would be an entity
        found = [[missing] * len(self.dev.words[sentence]) for sentence in chosen]
        for row, labels in enumerate(found):
            for position, word in first_subwords(inputs, row):
                labels[word] = self.labels.names[best[row, position]]
        return found


def validation_batches(rows: int) -> list[np.ndarray]:
    """Return the rows of the development set in batches of nearly equal size."""
    return np.array_split(np.arange(rows), math.ceil(rows / VALIDATION_BATCH))


def first_subwords(inputs: BatchEncoding, row: int) -> Iterator[tuple[int, int]]:
    """Yield the position of the first subword of every word, and the number of the word."""
    before = None
    for position, word in enumerate(inputs.word_ids(row)):
        if word is not None and word != before:
            yield position, word
        before = word
