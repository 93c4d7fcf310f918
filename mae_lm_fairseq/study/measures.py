"""The kinds of measures of a study: those of :mod:`~mae_lm_fairseq.measures`, and fine-tuning, which trains."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch

from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import GlueOptions, TaggingOptions
from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.finetuning.tagging.files import column_of, read_words
from mae_lm_fairseq.finetuning.tagging.labels import learn_labels
from mae_lm_fairseq.measures.evaluation import Evaluate, Loss
from mae_lm_fairseq.measures.kind import Data, Kind, Trained
from mae_lm_fairseq.measures.minimal_pairs import MinimalPairs
from mae_lm_fairseq.measures.probe import Probe
from mae_lm_fairseq.measures.rank import Exclusivity, Rank
from mae_lm_fairseq.measures.retrieval import Retrieval
from mae_lm_fairseq.measures.seconds import Seconds
from mae_lm_fairseq.utils.command_line import Count, LearningRate, Natural
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256


@dataclass(frozen=True, kw_only=True)
class Sweep(Kind):
    """Base of fine-tuning: the metrics of the best learning rate, in per cent, averaged over the seeds.

    Attributes:
        learning_rates: learning rates to try; by default the recipe's.
        seeds: number of fine-tuning seeds, which are averaged.
        max_updates: maximum number of updates.
        trained_layers: train only the last N layers of the encoder, as ``--trained-layers``; by default, all.
    """

    numbers: ClassVar = None
    learning_rates: tuple[LearningRate, ...] = ()
    seeds: Count = 1
    max_updates: Count | None = None
    trained_layers: Natural | None = None

    def _options(self, model: Trained) -> dict[str, Any]:
        layers = self.trained_layers
        return {
            "model": model.path,
            "data_bin": model.data.data_bin,
            "out": model.kept,
            "seeds": self.seeds,
            "learning_rates": self.learning_rates or None,
            "max_updates": self.max_updates,
            "threads": torch.get_num_threads(),
            "extra": () if layers is None else ("--trained-layers", str(layers)),
        }

    def in_words(self, name: str) -> str:
        return f"{super().in_words(name)} after fine-tuning (%)"

    def recorded(self, found: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics, averaged over the seeds."""
        return {name: fmean(metric["values"]) for name, metric in found["metrics"].items()}


@dataclass(frozen=True, kw_only=True)
class Finetune(Sweep):
    """Fine-tuning on a task of GLUE.

    Attributes:
        task: the task, such as RTE.
    """

    kind: ClassVar = "finetune"
    needs: ClassVar = ("glue_dir",)
    task: str

    def check(self, data: Data) -> None:
        super().check(data)
        if self.task not in TASKS:
            raise UserError(f"task {self.task} is not one of {', '.join(TASKS)}")
        sets = GlueFiles(TASKS[self.task], data.glue_dir)
        for split in sets.splits:
            sets.read(split)

    def measure(self, model: Trained) -> dict[str, Any]:
        """Return the results on the development set."""
        options = self._options(model)
        return finetune(GlueOptions(task=self.task, glue_dir=model.data.glue_dir, **options))


@dataclass(frozen=True, kw_only=True)
class Tagging(Sweep):
    """Fine-tuning on labelled words.

    Attributes:
        train, dev: files of labelled words.
        column: column of the labels.
    """

    kind: ClassVar = "tagging"
    train: Path
    dev: Path
    column: str = "UPOS"

    def check(self, data: Data) -> None:
        super().check(data)
        train = read_words(self.train, self.column)
        learn_labels(train).targets(read_words(self.dev, column_of(train, self.column)))

    def measure(self, model: Trained) -> dict[str, Any]:
        """Return the results on the development file."""
        files = {"train": self.train, "dev": self.dev, "column": self.column}
        return finetune(TaggingOptions(**files, **self._options(model)))


_KINDS = (Loss, Evaluate, Rank, Exclusivity, Probe, MinimalPairs, Retrieval, Finetune, Tagging, Seconds)
MEASURES = {one.kind: one for one in _KINDS}
"""Kinds of measures by their names in plans."""


def fingerprints(data: Data, options: Iterable[Any]) -> dict[str, str]:
    """Return hashes of the content of all files that a study reads, by path.

    Raises:
        UserError: if a file does not exist or cannot be read.
    """
    found = {}
    for item in (data, *options):
        for path in (value for field in fields(item) if isinstance(value := getattr(item, field.name), Path)):
            if not path.exists():
                raise UserError(f"{path} does not exist")
            found[str(path)] = directory_sha256(path)
    return found
