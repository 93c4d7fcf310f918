"""What a user asks for when fine-tuning on any task, and the command line for it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.utils.arguments import positive, positive_number
from mae_lm_fairseq.utils.logging import quieten


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions:
    """What every task has in common.

    Attributes:
        checkpoint: where to start; None for random weights.
        tokenizer: the data-bin of the pretraining run.
        out: where everything goes.
        arch: the architecture where there is no checkpoint.
        seeds: how many, from 1.
        learning_rates: the grid; None for the task's.
        max_updates: of each run; None for the task's epochs.
        jobs: runs at the same time.
        threads: of each run.
        extra: further options of fairseq-train.
    """

    checkpoint: Path | None
    tokenizer: Path
    out: Path
    arch: str | None = None
    seeds: int = 5
    learning_rates: Sequence[float] | None = None
    max_updates: int | None = None
    jobs: int = 1
    threads: int = 1
    extra: Sequence[str] = ()


def add_options(parser: argparse.ArgumentParser, usual_rates: str):
    """Add the options of :class:`FinetuningOptions`, but for ``extra``.

    Args:
        parser: of a script.
        usual_rates: what the grid is by default, for the help.
    """
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="of pretraining; 'none' for random weights")
    add("--tokenizer", type=Path, required=True, metavar="DATA_BIN", help="the data-bin of the pretraining run")
    add("--out", type=Path, required=True, metavar="DIR", help="where everything goes")
    add("--arch", metavar="ARCH", help="with --checkpoint none: the architecture")
    add("--seeds", type=positive, default=5, metavar="N", help="seeds 1 to N (default: %(default)s)")
    add("--learning-rates", type=positive_number, nargs="+", metavar="LR", help=f"(default: {usual_rates})")
    add("--max-updates", type=positive, metavar="N", help="end earlier than after the usual epochs")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at the same time (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="threads of each run (default: %(default)s)")


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> dict:
    """The options by name; what follows ``--`` is ``extra``. Quietens fairseq's logging, too."""
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    options = vars(parser.parse_args(words[:end]))
    quieten()
    checkpoint = None if options["checkpoint"] == "none" else Path(options["checkpoint"])
    return {**options, "checkpoint": checkpoint, "extra": words[end + 1 :]}
