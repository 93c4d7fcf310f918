#!/usr/bin/env python3
"""Convert a local copy of GLUE to a data-bin for fairseq's sentence_prediction, with a pretraining run's tokenizer.

The copy has the official TSV layout (GLUE/CoLA/train.tsv) or that of the Hugging Face hub (GLUE/cola/train.parquet,
.jsonl or .json).
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.finetuning.glue.preparation import prepare
from mae_lm_fairseq.finetuning.glue.tasks import TASKS, find_task
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    add("--glue-dir", type=Path, required=True, metavar="DIR", help="local copy of GLUE")
    add("--tokenizer", type=Path, required=True, metavar="DATA_BIN", help="data-bin of the pretraining run")
    add("--destdir", type=Path, required=True, metavar="DIR", help="output directory, which must not exist")
    add(
        "--max-positions",
        type=positive,
        default=512,
        metavar="N",
        help="maximum sequence length of the checkpoint; longer ones are truncated and counted (default: %(default)s)",
    )
    add("--skip-malformed", action="store_true", help="drop malformed rows, except from test sets")
    return parser


def main(argv: list[str] | None = None):
    """Run the command."""
    options = parser().parse_args(argv)
    configure_logging()
    task = find_task(options.task)
    tokenizer = open_tokenizer(options.tokenizer)
    statistics = prepare(
        task, options.glue_dir, tokenizer, options.destdir, options.max_positions, options.skip_malformed
    )
    for split, counts in statistics["splits"].items():
        print(f"{split:7}" + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
