#!/usr/bin/env python3
"""Fine-tune on a task of GLUE, from a checkpoint to the number in the table: learning rates x seeds.

Started again with the same directory, it goes on where it was. It leaves results.json, report.md and the predictions on
the test sets in the format of the GLUE server. What follows -- goes to fairseq-train, and wins.
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.downstream.glue.tasks import FROM_MNLI, TASKS, find_task
from mae_lm_fairseq.downstream.options import add_options, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program


def parser() -> argparse.ArgumentParser:
    """The command line; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    add("--glue-dir", type=Path, required=True, metavar="DIR", help="a local copy of GLUE, see preprocess/glue")
    add_options(parser, "RoBERTa's, 1e-5 2e-5 3e-5")
    add(
        "--from-mnli",
        action="store_true",
        help=f"the checkpoint was fine-tuned on MNLI by this program; for {', '.join(FROM_MNLI)}",
    )
    add("--skip-malformed", action="store_true", help="leave malformed rows out, of all but test sets")
    return parser


def main(argv: list[str] | None = None):
    """Run the command."""
    options = parse(parser(), argv)
    from mae_lm_fairseq.downstream.glue.run import Options, finetune

    options["task"] = find_task(options["task"])
    content = finetune(Options(**options))
    for name, metric in content["metrics"].items():
        print(f"{name}: median {metric['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in metric['values'])}")
    print(f"report: {options['out'] / 'report.md'}")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
