"""Evaluation of a checkpoint on the sets of a sentence task's data-bin."""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from mae_lm_fairseq.finetuning.adapter import on_test_file
from mae_lm_fairseq.finetuning.sentences.metrics import compute_metrics
from mae_lm_fairseq.finetuning.sentences.prediction import BATCH
from mae_lm_fairseq.finetuning.sentences.tasks import Task, predictions
from mae_lm_fairseq.tasks.loading import load_with_task
from mae_lm_fairseq.trained.logits import batch_logits, by_length


class DataBinSets:
    """The sets of a data-bin, as the checkpoint of a run reads and classifies them.

    Rows are in the order of the data-bin.
    """

    def __init__(self, checkpoint: Path, data: Path):
        # Evaluation is in float32, as by open_finetuned.
        model, self._task = load_with_task(checkpoint, data, autocast="none")
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu")

    def logits(self, split: str) -> np.ndarray:
        """Return the logits of a set, [rows, classes] float32."""
        dataset = self._dataset(split)
        sizes = [dataset.num_tokens(row) for row in range(len(dataset))]
        logits = np.empty((len(dataset), self._task.cfg.num_classes), dtype=np.float32)
        head = self._task.cfg.classification_head_name
        batches = by_length(sizes, BATCH)
        for rows, _, output in batch_logits(self.model, dataset, dataset.collater, batches, head):
            logits[rows] = output.float().cpu().numpy()
        return logits

    def targets(self, split: str) -> np.ndarray:
        """Return the true classes or values of a set, [rows]."""
        dataset = self._dataset(split)
        targets = []
        for row in range(len(dataset)):
            target = np.asarray(dataset[row]["target"])
            targets.append(target.item())
        return np.array(targets)

    def _dataset(self, split: str) -> Any:
        if split not in self._task.datasets:
            self._task.load_dataset(split)
        return self._task.dataset(split)


def evaluate_sentences(
    task: Task, checkpoint: Path, directory: Path, data: Path, is_test_scored: bool
) -> dict[str, float]:
    """Return the metrics on the development sets in per cent, and ``score``, their mean.

    The metrics of further development sets have endings: for MNLI they are ``accuracy`` and ``accuracy_mismatched``.

    Args:
        directory: that of the run, where nothing is written.
        data: the data-bin.
        is_test_scored: also return the metrics on the labelled test set, as ``test_accuracy``; they are no part of
            ``score``, which selects.
    """
    sets = DataBinSets(checkpoint, data)
    metrics = {}
    in_score = []
    for split, suffix in task.dev_suffixes.items():
        for name, value in set_metrics(task, sets, split).items():
            metrics[name + suffix] = value
            if name in task.metrics:
                in_score.append(value)
    if is_test_scored:
        metrics |= on_test_file(set_metrics(task, sets, "test"))
    return {**metrics, "score": fmean(in_score)}


def set_metrics(task: Task, sets: DataBinSets, split: str) -> dict[str, float]:
    """Return the task's metrics on a set of its data-bin, in per cent."""
    predicted = predictions(task, sets.logits(split))
    true = sets.targets(split)
    if task.is_regression:
        true = task.from_unit(true)
    return compute_metrics(task.all_metrics, predicted, true)
