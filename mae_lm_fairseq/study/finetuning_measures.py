"""The measures that train: fine-tuning. Those that only measure are in :mod:`~mae_lm_fairseq.measures`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch

from mae_lm_fairseq.finetuning.options import ClassificationOptions, FinetuningOptions, GlueOptions, TaggingOptions
from mae_lm_fairseq.finetuning.sentences.own_files import OwnFiles
from mae_lm_fairseq.finetuning.sentences.tasks import find_task
from mae_lm_fairseq.finetuning.tagging.adapter import TaggingAdapter
from mae_lm_fairseq.measures.measure import Data, Measure, ModelToMeasure
from mae_lm_fairseq.text.tables import read_table, write_table
from mae_lm_fairseq.text.text_files import read_chunks
from mae_lm_fairseq.text.text_samples import documents, evenly_spaced
from mae_lm_fairseq.text.word_files import plain_name
from mae_lm_fairseq.utils.command_line import Count, LearningRate, Natural
from mae_lm_fairseq.utils.files import write_text


@dataclass(frozen=True, kw_only=True)
class FineTuning(Measure):
    """Base of fine-tuning: the metrics of the best learning rate, in per cent, averaged over the seeds.

    Attributes:
        learning_rates: learning rates to try; by default the recipe's.
        seeds: number of fine-tuning seeds, which are averaged.
        max_updates: maximum number of updates.
        trained_layers: train only the last N layers of the encoder, as ``--trained-layers``; by default, all.
    """

    values: ClassVar = None
    learning_rates: tuple[LearningRate, ...] = ()
    seeds: Count = 1
    max_updates: Count | None = None
    trained_layers: Natural | None = None

    def options_of_model(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the options of fine-tuning but those of the task's files."""
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

    def recorded(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics, averaged over the seeds."""
        return _means(result["metrics"])


def _means(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return metrics, averaged over the seeds."""
    return {name: fmean(metric["values"]) for name, metric in metrics.items()}


@dataclass(frozen=True, kw_only=True)
class FineTuningOnGlue(FineTuning):
    """Fine-tuning on a task of GLUE.

    Attributes:
        task: the task, such as RTE.
    """

    kind: ClassVar = "finetune"
    needs: ClassVar = ("glue_dir",)
    task: str

    def check(self, data: Data) -> None:
        from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles  # needs fairseq

        super().check(data)
        sets = GlueFiles(find_task(self.task), data.glue_dir)
        for split in sets.splits:
            sets.read(split)

    def measure(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the results on the development set."""
        from mae_lm_fairseq.finetuning.driver import finetune  # needs fairseq

        options = self.options_of_model(model)
        return finetune(GlueOptions(task=self.task, glue_dir=model.data.glue_dir, **options))


@dataclass(frozen=True, kw_only=True)
class FineTuningOnFiles(FineTuning):
    """Base of fine-tuning on files of the user's own.

    Attributes:
        train: training file.
        dev: development file, which chooses the learning rate.
        test: labelled file on which every run is scored, besides the development file.
        limit: number of training rows or sentences, evenly spaced in the file; by default, all.
        verb: the options of the verb that does the same.
        columns: the names of its options, and of the measure's, that say what to read in the files.
    """

    verb: ClassVar[type[FinetuningOptions]]
    columns: ClassVar[tuple[str, ...]]
    train: Path
    dev: Path
    test: Path | None = None
    limit: Count | None = None

    def recorded(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics at the chosen learning rate and, with a test file, at every one: ``f1 at 0.0001``."""
        metrics = super().recorded(result)
        if self.test is not None:
            for rate, at_rate in result["grid"].items():
                metrics |= {f"{name} at {rate}": mean for name, mean in _means(at_rate).items()}
        return metrics

    def training_file(self, directory: Path) -> Path:
        """Return the training file; with a limit, a part of it that is written into a directory."""
        if self.limit is None:
            return self.train
        directory.mkdir(parents=True, exist_ok=True)
        return self.write_part(directory)

    def write_part(self, directory: Path) -> Path:
        """Write as many rows or sentences as ``limit``, evenly spaced in the training file; return the new file."""
        raise NotImplementedError

    def options_with(self, train: Path, **others) -> FinetuningOptions:
        """Return the options of fine-tuning on a training file, with others that are not of the files."""
        columns = {name: getattr(self, name) for name in self.columns}
        score_runs = self.test is not None
        return self.verb(train=train, dev=self.dev, test=self.test, score_runs=score_runs, **columns, **others)

    def check_files(self, options: FinetuningOptions) -> None:
        """Read the files, to reject malformed ones before anything is trained."""
        raise NotImplementedError

    def check(self, data: Data) -> None:
        super().check(data)
        with TemporaryDirectory() as directory:
            folder = Path(directory)
            train = self.training_file(folder)
            options = self.options_with(train, model=folder, out=folder)
            self.check_files(options)

    def measure(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the results on the development file, and on the test file if there is one."""
        from mae_lm_fairseq.finetuning.driver import finetune  # needs fairseq

        train = self.training_file(model.kept)
        options = self.options_with(train, **self.options_of_model(model))
        return finetune(options)


@dataclass(frozen=True, kw_only=True)
class FineTuningOnTexts(FineTuningOnFiles):
    """Fine-tuning on texts with labels or scores, or on pairs of texts.

    Attributes:
        text: column of the text, or of the first text of a pair.
        text_pair: column of the second text of a pair.
        label: column of the label or score.
        regression: predict scores, even if all labels are integers.
    """

    kind: ClassVar = "classification"
    verb: ClassVar = ClassificationOptions
    columns: ClassVar = ("text", "text_pair", "label", "regression")
    text: str
    text_pair: str | None = None
    label: str
    regression: bool = False

    def write_part(self, directory: Path) -> Path:
        table = read_table(self.train)
        path = directory / f"train-{self.limit}.jsonl"
        rows = [row for _, row in evenly_spaced(table.rows, self.limit)]
        write_table(path, table.columns, rows)
        return path

    def check_files(self, options: FinetuningOptions) -> None:
        sets = OwnFiles(options)
        for split in sets.splits:
            sets.read(split)


@dataclass(frozen=True, kw_only=True)
class FineTuningOnWords(FineTuningOnFiles):
    """Fine-tuning on labelled words.

    Attributes:
        column: column of the labels.
    """

    kind: ClassVar = "tagging"
    verb: ClassVar = TaggingOptions
    columns: ClassVar = ("column",)
    column: str = "UPOS"

    def write_part(self, directory: Path) -> Path:
        lines = chain.from_iterable(chunk.lines() for chunk in read_chunks(self.train))
        sentences = list(documents(lines))
        path = directory / f"train-{self.limit}{plain_name(self.train).suffix}"
        text = ""
        for sentence in evenly_spaced(sentences, self.limit):
            text += "\n".join(sentence) + "\n\n"
        write_text(path, text)
        return path

    def check_files(self, options: FinetuningOptions) -> None:
        TaggingAdapter(options)  # reads the files
