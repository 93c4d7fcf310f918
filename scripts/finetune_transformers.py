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

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq.finetuning.sentences.tasks import find_task
from mae_lm_fairseq.utils.arguments import output_file, positive, positive_number
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import versions


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    glue = kinds.add_parser("glue", help="a task of GLUE")
    glue.add_argument("task", metavar="TASK", type=find_task, help="task of GLUE")
    glue.add_argument("--glue-dir", type=Path, required=True, metavar="DIR", help="local copy of GLUE")
    tagging = kinds.add_parser("tagging", help="labelled words")
    tagging.add_argument("column", metavar="COLUMN", help="name or number of the column of labels")
    for name in ("train", "dev"):
        tagging.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help="CoNLL-U or CoNLL file")
    for kind in (glue, tagging):
        add = kind.add_argument
        add("--model", type=Path, required=True, metavar="DIR", help="directory of transformers")
        add("--learning-rate", type=positive_number, required=True, metavar="LR", help="maximum learning rate")
        add("--seeds", type=positive, default=3, metavar="N", help="number of seeds (default: %(default)s)")
        add("--max-updates", type=positive, metavar="N", help="at most so many updates (default: the recipe's)")
        add("--json", type=output_file, required=True, metavar="FILE", help="JSON file for the results")
    return parser


def main() -> None:
    """Fine-tune with every seed, and write the results."""
    arguments = parser().parse_args()
    from mae_lm_fairseq.finetuning.results import summarise

    name, settings, run = {"glue": _glue, "tagging": _tagging}[arguments.kind](arguments)
    found = [run(seed).run(f"seed {seed}") for seed in range(1, arguments.seeds + 1)]
    metrics = {name: asdict(summarise([each[name] for each in found])) for name in found[0]}
    described = asdict(settings) | {"model": settings.model.name}
    write_json(arguments.json, {"task": name, "settings": described, "metrics": metrics, "versions": versions()})
    for name, summary in metrics.items():
        print(
            f"{name}: median {summary['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in summary['values'])}"
        )


def _glue(arguments: argparse.Namespace) -> tuple[str, object, Callable]:
    from benchmark.finetuning import SentenceClassification, Settings
    from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles

    task = arguments.task
    data = {split: GlueFiles(task, arguments.glue_dir).read(split) for split in ("train", "valid")}
    updates = _updates(task.epochs, len(data["train"].labels), task.batch_size, arguments.max_updates)
    settings = Settings(arguments.model, arguments.learning_rate, updates, task.batch_size, 0.1)
    return task.name, settings, lambda seed: SentenceClassification(task, data, settings, seed)


def _tagging(arguments: argparse.Namespace) -> tuple[str, object, Callable]:
    from benchmark.finetuning import Settings, WordClassification
    from mae_lm_fairseq.finetuning.tagging.files import read_words
    from mae_lm_fairseq.finetuning.tagging.run import BERT

    train, dev = (read_words(path, arguments.column) for path in (arguments.train, arguments.dev))
    updates = _updates(BERT.epochs, len(train.sentences), BERT.batch_size, arguments.max_updates)
    settings = Settings(arguments.model, arguments.learning_rate, updates, BERT.batch_size, BERT.weight_decay)
    return arguments.column, settings, lambda seed: WordClassification(train, dev, settings, seed)


def _updates(epochs: int, rows: int, batch_size: int, most: int | None) -> int:
    updates = epochs * math.ceil(rows / batch_size)
    return min(updates, most or updates)


if __name__ == "__main__":
    with errors_end_the_program():
        main()
