"""Fine-tuning on GLUE by a plain loop around transformers, as a peer of ``mae-lm finetune glue``."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from mae_lm_fairseq.downstream.glue.files import Rows
from mae_lm_fairseq.downstream.glue.tasks import Task, predictions, score, task_score
from mae_lm_fairseq.downstream.sweep import WARMUP_FRACTION
from mae_lm_fairseq.utils.progress import progress_bar

VALIDATION_BATCH = 64


class FineTuning:
    """One run: a model, its data and its optimizer."""

    def __init__(self, task: Task, model: Path, rows: dict[str, Rows], learning_rate: float, updates: int, seed: int):
        set_seed(seed)
        self.task, self.rows, self.updates = task, rows, updates
        self.random = np.random.default_rng(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForSequenceClassification.from_pretrained(model, num_labels=task.num_classes)
        # fairseq's options: decay on every weight, biases and layer norms included.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), learning_rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1
        )
        warmup = round(WARMUP_FRACTION * updates)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / max(warmup, 1), (updates - step) / max(updates - warmup, 1))
        )

    def inputs(self, rows: Rows, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        """Return the batch of the chosen rows."""
        sentences = map(list, zip(*(rows.sentences[row] for row in chosen), strict=True))
        return self.tokenizer(*sentences, truncation=True, max_length=512, padding=True, return_tensors="pt")

    def batches(self) -> Iterator[np.ndarray]:
        """Yield the rows of every update, shuffled in each epoch."""
        number = len(self.rows["train"].labels)
        while True:
            order = self.random.permutation(number)
            for first in range(0, number, self.task.batch_size):
                yield order[first : first + self.task.batch_size]

    def update(self, chosen: np.ndarray) -> None:
        """Train on one batch."""
        self.model.train()
        logits = self.model(**self.inputs(self.rows["train"], chosen)).logits
        labels = torch.tensor([self.rows["train"].labels[row] for row in chosen])
        if self.task.is_regression:
            targets = torch.tensor([self.task.to_unit(float(label)) for label in labels])
            loss = torch.nn.functional.mse_loss(logits[:, 0], targets)
        else:
            loss = torch.nn.functional.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the development set in per cent, and ``score``, their mean."""
        self.model.eval()
        rows = self.rows["valid"]
        parts = np.array_split(np.arange(len(rows.labels)), math.ceil(len(rows.labels) / VALIDATION_BATCH))
        logits = np.concatenate([self.model(**self.inputs(rows, part)).logits.numpy() for part in parts])
        metrics = score(self.task, predictions(self.task, logits), np.array(rows.labels))
        return {**metrics, "score": task_score(metrics)}

    def run(self, name: str) -> dict[str, float]:
        """Train, and return the best of the evaluations after every epoch."""
        epoch, found = math.ceil(len(self.rows["train"].labels) / self.task.batch_size), []
        steps = zip(range(1, self.updates + 1), self.batches(), strict=False)
        for step, chosen in progress_bar(steps, desc=name, total=self.updates):
            self.update(chosen)
            if step % epoch == 0 or step == self.updates:
                found.append(self.evaluate())
        return max(found, key=lambda metrics: metrics["score"])
