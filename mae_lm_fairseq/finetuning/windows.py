"""Base classes of tasks that read files and train on windows of the texts in them: dataset, task and criterion."""

import logging
import math
from pathlib import Path

import numpy as np
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer

logger = logging.getLogger(__name__)


class WindowDataset(FairseqDataset):
    """Windows of texts. ``collate_targets(samples)`` returns the part of a batch that only the task has.

    Attributes:
        windows: all windows.
        sizes: int[windows], tokens of each.
        order: numbers of the windows to train on, shuffled.
        counts: what the windows are made of, by name.
    """

    def __len__(self) -> int:
        return len(self.windows)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def ordered_indices(self) -> np.ndarray:
        return self.order

    def collater(self, samples: list[dict]) -> dict:
        """Return a batch: ``src_tokens`` [B, T] int64, numbers of tokens and sequences, targets; {} for no samples."""
        if not samples:
            return {}
        tokens = [sample["tokens"] for sample in samples]
        lengths = torch.tensor([len(each) for each in tokens])
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {"src_tokens": data_utils.collate_tokens(tokens, PAD), "src_lengths": lengths},
            "nsentences": len(samples),
            "ntokens": int(lengths.sum()),
            **self.collate_targets(samples),
        }


class WindowTask(FairseqTask):
    """Task with the tokenizer of the pretrained model; its sequences are built in memory from files.

    ``read(path)`` returns the windows of a file, ``register_head(model)`` adds the task's head to an ``MAELMModel``.
    """

    def __init__(self, cfg: FairseqDataclass, **kwargs):
        super().__init__(cfg, **kwargs)
        self.tokenizer = open_tokenizer(Path(cfg.data))
        self.dictionary = Dictionary()
        for piece in self.tokenizer.pieces:
            self.dictionary.add_symbol(piece)
        self.dictionary.add_symbol("<mask>")

    def load_dataset(self, split: str, **kwargs):
        """Load the file of ``train`` or ``valid``, and log what it is made of.

        Raises:
            UserError: if the file is missing or malformed.
        """
        path = Path({"train": self.cfg.train_file, "valid": self.cfg.valid_file}[split])
        dataset = self.datasets[split] = self.read(path)
        logger.info("%s: %s", path, ", ".join(f"{name}: {count}" for name, count in dataset.counts.items()))

    def build_model(self, cfg, from_checkpoint: bool = False) -> BaseFairseqModel:
        model = super().build_model(cfg, from_checkpoint)
        self.register_head(model)
        return model

    def max_positions(self) -> int:
        return self.cfg.tokens_per_sample

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    target_dictionary = source_dictionary


class AccuracyCriterion(FairseqCriterion):
    """A criterion that logs ``loss`` in bits, and ``accuracy`` in per cent of the ``sample_size``."""

    @staticmethod
    def outputs(loss: Tensor, correct: Tensor, sample_size: int, sample: dict) -> tuple[Tensor, int, dict]:
        """Return what ``forward`` does: the summed loss in nats, the ``sample_size``, and the values to log."""
        sizes = {"ntokens": sample["ntokens"], "nsentences": sample["nsentences"], "sample_size": sample_size}
        return loss, sample_size, {"loss": loss.detach(), "correct": correct} | sizes

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict]):
        """Log the averages over the samples of all workers."""
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        samples = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / samples / math.log(2), samples, round=3)
        metrics.log_scalar("accuracy", 100 * total["correct"] / samples, samples, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
