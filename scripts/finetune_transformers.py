#!/usr/bin/env python3
"""Fine-tune a stock model on GLUE with a plain loop around transformers, to compare with mae-lm finetune glue.

Tokenizer, model and head are those of transformers. Data, metrics, number of updates, batch size, optimizer, learning
rate schedule and selection of the best checkpoint are those of mae-lm finetune glue: it is AdamW with weight decay 0.1
on every weight, 6 % warm-up, then linear decay, and the best of the validations after every epoch.

Example:
    scripts/finetune_transformers.py RTE --glue-dir GLUE --model MODEL --learning-rate 5e-5 --json rte.json
"""

import argparse
import math
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq.downstream.glue.tasks import find_task
from mae_lm_fairseq.utils.arguments import output_file, positive, positive_number
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", metavar="TASK", type=find_task, help="task of GLUE")
    add("--glue-dir", type=Path, required=True, metavar="DIR", help="local copy of GLUE")
    add("--model", type=Path, required=True, metavar="DIR", help="directory of transformers")
    add("--learning-rate", type=positive_number, required=True, metavar="LR", help="maximum learning rate")
    add("--seeds", type=positive, default=3, metavar="N", help="number of seeds (default: %(default)s)")
    add("--max-updates", type=positive, metavar="N", help="at most so many updates (default: the task's 10 epochs)")
    add("--json", type=output_file, required=True, metavar="FILE", help="JSON file for the results")
    return parser


def main() -> None:
    """Fine-tune with every seed, and write the results."""
    arguments = parser().parse_args()
    from mae_lm_fairseq.benchmarks.finetuning import FineTuning
    from mae_lm_fairseq.downstream.glue.files import read_split
    from mae_lm_fairseq.downstream.seeds import summarise
    from mae_lm_fairseq.utils.versions import versions

    task = arguments.task
    rows = {split: read_split(task, arguments.glue_dir, split if split == "train" else task.splits[split])
            for split in ("train", "valid")}  # fmt: skip
    updates = task.epochs * math.ceil(len(rows["train"].labels) / task.batch_size)
    updates = min(updates, arguments.max_updates or updates)
    found = [
        FineTuning(task, arguments.model, rows, arguments.learning_rate, updates, seed).run(f"seed {seed}")
        for seed in range(1, arguments.seeds + 1)
    ]
    metrics = {name: asdict(summarise([each[name] for each in found])) for name in found[0]}
    settings = {"updates": updates, "batch_size": task.batch_size, "learning_rate": arguments.learning_rate}
    write_json(arguments.json, {"task": task.name, "settings": settings, "metrics": metrics, "versions": versions()})
    for name, summary in metrics.items():
        print(
            f"{name}: median {summary['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in summary['values'])}"
        )


if __name__ == "__main__":
    with errors_end_the_program():
        main()
