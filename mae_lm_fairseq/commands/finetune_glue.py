"""Fine-tune on a task of GLUE, from a checkpoint to the number in the table: learning rates x seeds.

Started again with the same directory, it resumes. It writes results.json, report.md, the predictions on the test sets
in the format of the GLUE server, and model/, a bundle of the best run. Arguments after -- are passed to fairseq-train
and override its options.

Example:
    mae-lm finetune glue RTE --glue-dir GLUE --checkpoint checkpoints/mae_lm/checkpoint_last.pt \\
        --tokenizer data-bin --out rte
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.finetuning.glue.tasks import FROM_MNLI, TASKS, find_task
from mae_lm_fairseq.finetuning.options import add_options, locked_options, print_summary


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    add(
        "--glue-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="local copy of GLUE, in the official or the hub's layout",
    )
    add_options(parser, "RoBERTa's, 1e-5 2e-5 3e-5")
    add(
        "--from-mnli",
        action="store_true",
        help=f"start from a checkpoint fine-tuned on MNLI; for {', '.join(FROM_MNLI)}",
    )
    add("--skip-malformed", action="store_true", help="drop malformed rows, except from test sets")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    with locked_options(parser(), argv) as options:
        from mae_lm_fairseq.finetuning.glue.run import Options, finetune

        options["task"] = find_task(options["task"])
        print_summary(finetune(Options(**options))["metrics"], options["out"])
