#!/usr/bin/env python3
"""Fine-tune on a task of GLUE, from a checkpoint to the number in the table: learning rates x seeds.

Started again with the same directory, it goes on where it was. It leaves results.json, report.md and the predictions on
the test sets in the format of the GLUE server. What follows -- goes to fairseq-train, and wins.
"""

import argparse
import logging
import sys
from pathlib import Path

from mae_lm_fairseq.evaluation.glue import FROM_MNLI, TASKS, find_task
from mae_lm_fairseq.experiments.glue import Options, finetune


def parser() -> argparse.ArgumentParser:
    """The command line; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    add("--glue-dir", type=Path, required=True, metavar="DIR", help="a local copy of GLUE, see preprocess/glue")
    add("--checkpoint", required=True, metavar="FILE", help="of pretraining; 'none' for random weights")
    add("--tokenizer", type=Path, required=True, metavar="DATA_BIN", help="the data-bin of the pretraining run")
    add("--out", type=Path, required=True, metavar="DIR", help="where everything goes")
    add("--arch", metavar="ARCH", help="with --checkpoint none: the architecture")
    add("--seeds", type=positive, default=5, metavar="N", help="seeds 1 to N (default: %(default)s)")
    add("--learning-rates", type=float, nargs="+", metavar="LR", help="(default: RoBERTa's, 1e-5 2e-5 3e-5)")
    add("--max-updates", type=positive, metavar="N", help="end earlier than after the task's epochs")
    add(
        "--from-mnli",
        action="store_true",
        help=f"the checkpoint was fine-tuned on MNLI by this program; for {', '.join(FROM_MNLI)}",
    )
    add("--skip-malformed", action="store_true", help="leave malformed rows out, of all but test sets")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at the same time (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="threads of each run (default: %(default)s)")
    return parser


def positive(text: str) -> int:
    """A whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def main(argv: list[str] | None = None):
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    options = vars(parser().parse_args(words[:end])) | {"extra": words[end + 1 :]}
    # Among fairseq's imports is one that makes the root logger print everything.
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)
    options["task"] = find_task(options["task"])
    checkpoint = options.pop("checkpoint")
    content = finetune(Options(**options, checkpoint=None if checkpoint == "none" else Path(checkpoint)))
    for name, metric in content["metrics"].items():
        print(f"{name}: median {metric['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in metric['values'])}")
    print(f"report: {options['out'] / 'report.md'}")


if __name__ == "__main__":
    main()
