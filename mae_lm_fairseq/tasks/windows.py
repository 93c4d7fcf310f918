"""Base classes of tasks that read files and train on windows of the texts in them: dataset, task and criterion."""

import logging
import math
from pathlib import Path

import numpy as np
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.text.windows import Windows

logger = logging.getLogger(__name__)


class WindowDataset(FairseqDataset):
    """Windows of texts as a data set of fairseq, with their attributes."""

    def __init__(self, windows: Windows):
        self.windows = windows
        self.sizes = windows.sizes

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict:
        return self.windows[index]

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def ordered_indices(self) -> np.ndarray:
        return self.windows.order

    def collater(self, samples: list[dict]) -> dict:
        return self.windows.batch(samples)


class WindowTask(FairseqTask):
    """Task with the tokenizer of the pretrained model; its sequences are built in memory from files.

    ``read(path)`` returns the :class:`Windows` of a file. ``register_head(model)`` adds the task's head to an
    ``MAELMModel``.
    """

    def __init__(self, cfg: FairseqDataclass, **kwargs):
        super().__init__(cfg, **kwargs)
        self.tokenizer = open_tokenizer(Path(cfg.data))
        self.dictionary = Dictionary()
        for subword in self.tokenizer.pieces:
            self.dictionary.add_symbol(subword)
        self.dictionary.add_symbol("<mask>")

    def load_dataset(self, split: str, **kwargs):
        """Load the file of ``train`` or ``valid``, and log what it is made of.

        Raises:
            UserError: if the file is missing or malformed.
        """
        files = {"train": self.cfg.train_file, "valid": self.cfg.valid_file}
        path = Path(files[split])
        windows = self.read(path)
        self.datasets[split] = WindowDataset(windows)
        counts = ", ".join(f"{name}: {count}" for name, count in windows.counts.items())
        logger.info("%s: %s", path, counts)

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
        log = {
            "loss": loss.detach(),
            "correct": correct,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        return loss, sample_size, log

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
