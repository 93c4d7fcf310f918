"""Predictions of a checkpoint for the sets of a sentence task's data-bin."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mae_lm_fairseq.finetuning.sentences.prediction import BATCH
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
        return np.array([np.asarray(dataset[row]["target"]).item() for row in range(len(dataset))])

    def _dataset(self, split: str) -> Any:
        if split not in self._task.datasets:
            self._task.load_dataset(split)
        return self._task.dataset(split)
