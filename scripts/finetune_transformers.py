#!/usr/bin/env python3
"""Fine-tune a stock model with a plain loop around transformers, to compare with mae-lm finetune.

Tokenizer, model and head are those of transformers. Data, metrics, number of updates, batch size, optimizer, learning
rate schedule and selection of the checkpoint are those of mae-lm finetune glue, or of mae-lm finetune tagging for base
and large models: AdamW with weight decay on every weight, 6 % warm-up, then linear decay; for GLUE the best of the
validations after every epoch. An epoch of labelled words is counted in sentences.

Example:
    scripts/finetune_transformers.py glue RTE --glue-dir GLUE --model MODEL --learning-rate 5e-5 --json rte.json
    scripts/finetune_transformers.py tagging UPOS --train train.conllu --dev dev.conllu --model MODEL \\
        --learning-rate 5e-5 --json upos.json
"""

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from mae_lm_fairseq.finetuning.sentences.tasks import find_task
from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    LearningRate,
    Options,
    OutputFile,
    parse,
)
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import versions


@dataclass(frozen=True)
class LoopOptions(Options):
    """Options of the loop.

    Attributes:
        kind: glue for a task of GLUE, tagging for labelled words.
        name: task of GLUE; or name or number of the column of labels.
        model: directory of transformers.
        learning_rate: maximum learning rate.
        json: JSON file for the results.
        glue_dir: local copy of GLUE.
        train, dev: CoNLL-U or CoNLL file.
        seeds: number of seeds.
        max_updates: at most so many updates (default: the recipe's).
    """

    kind: Annotated[Literal["glue", "tagging"], Argument(positional=True)]
    name: Annotated[str, Argument("NAME", positional=True)]
    model: Directory
    learning_rate: LearningRate
    json: OutputFile
    glue_dir: Directory | None = None
    train: File | None = None
    dev: File | None = None
    seeds: Count = 3
    max_updates: Count | None = None


def main(arguments: LoopOptions) -> None:
    """Fine-tune with every seed, and write the results."""
    for name in ("glue_dir",) if arguments.kind == "glue" else ("train", "dev"):
        if getattr(arguments, name) is None:
            raise UserError(f"--{name.replace('_', '-')} is missing")
    from mae_lm_fairseq.finetuning.results import summarise

    name, settings, run = {"glue": _glue, "tagging": _tagging}[arguments.kind](arguments)
    found = [run(seed).run(f"seed {seed}") for seed in range(1, arguments.seeds + 1)]
    metrics = {name: summarise([each[name] for each in found]) for name in found[0]}
    described = asdict(settings) | {"model": settings.model.name}
    write_json(arguments.json, {"task": name, "settings": described, "metrics": metrics, "versions": versions()})
    for name, summary in metrics.items():
        print(
            f"{name}: median {summary['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in summary['values'])}"
        )


def _glue(arguments: LoopOptions) -> tuple[str, object, Callable]:
    from benchmark.finetuning import SentenceClassification, Settings
    from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles

    task = find_task(arguments.name)
    data = {split: GlueFiles(task, arguments.glue_dir).read(split) for split in ("train", "valid")}
    updates = _updates(task.recipe.epochs, len(data["train"].labels), task.batch_size, arguments.max_updates)
    settings = Settings(arguments.model, arguments.learning_rate, updates, task.batch_size, 0.1)
    return task.name, settings, lambda seed: SentenceClassification(task, data, settings, seed)


def _tagging(arguments: LoopOptions) -> tuple[str, object, Callable]:
    from benchmark.finetuning import Settings, WordClassification
    from mae_lm_fairseq.finetuning.tagging.adapter import BERT
    from mae_lm_fairseq.text.word_files import read_words

    train, dev = (read_words(path, arguments.name) for path in (arguments.train, arguments.dev))
    updates = _updates(BERT.epochs, len(train.sentences), BERT.batch_size, arguments.max_updates)
    settings = Settings(arguments.model, arguments.learning_rate, updates, BERT.batch_size, BERT.weight_decay)
    return arguments.name, settings, lambda seed: WordClassification(train, dev, settings, seed)


def _updates(epochs: int, rows: int, batch_size: int, most: int | None) -> int:
    updates = epochs * math.ceil(rows / batch_size)
    return min(updates, most or updates)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(LoopOptions, sys.argv[1:], __doc__, "finetune_transformers.py"))
