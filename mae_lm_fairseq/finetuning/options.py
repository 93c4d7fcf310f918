"""Options shared by all fine-tuning tasks, and their command line."""

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.arguments import add_ema, positive, positive_number
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.logging import configure_logging

# Options of fairseq-train that a sweep sets for each run or records, with the options that do so.
_SET_BY_SWEEP = {
    "--lr": "--learning-rates",
    "--seed": "--seeds",
    "--finetune-from-model": "--checkpoint",
    "--restore-file": "--checkpoint",
}
_OF_VALIDATION = (
    "--best-checkpoint-metric",
    "--maximize-best-checkpoint-metric",
    "--keep-best-checkpoints",
    "--patience",
    "--validate-interval",
    "--validate-interval-updates",
)


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions:
    """Options shared by all fine-tuning tasks.

    Attributes:
        checkpoint: checkpoint or bundle to start from; None for random weights.
        tokenizer: the data-bin of the pretraining run, or the bundle.
        out: output directory.
        arch: the architecture, if ``checkpoint`` is None.
        seeds: number of seeds; they are 1, 2, ...
        learning_rates: the learning rates to try; None for the task's.
        max_updates: maximum number of updates per run; None for the task's epochs.
        jobs: number of parallel runs.
        threads: number of threads per run.
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
    """Add the options of :class:`FinetuningOptions` except ``extra``.

    Args:
        parser: the parser of a script.
        usual_rates: the default learning rates, for the help text.
    """
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        metavar="MODEL",
        help="checkpoint, bundle, or 'none' (random weights)",
    )
    add("--tokenizer", type=Path, metavar="DATA_BIN", help="data-bin of the pretraining run (default: the bundle)")
    add_ema(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="output directory")
    add("--arch", metavar="ARCH", help="architecture, with --checkpoint none")
    add("--seeds", type=positive, default=5, metavar="N", help="train with seeds 1 to N (default: %(default)s)")
    add(
        "--learning-rates",
        type=positive_number,
        nargs="+",
        metavar="LR",
        help=f"learning rates to try (default: {usual_rates})",
    )
    add("--max-updates", type=positive, metavar="N", help="stop after N updates, if the usual epochs are longer")
    add("--jobs", type=positive, default=1, metavar="N", help="number of parallel runs (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="number of threads per run (default: %(default)s)")


@contextlib.contextmanager
def locked_options(
    parser: argparse.ArgumentParser, argv: list[str] | None, validates: bool = True
) -> Iterator[dict[str, Any]]:
    """Parse the options as :func:`parse` does, and lock the output directory during the ``with`` block.

    With ``--ema``, ``checkpoint`` becomes a checkpoint of the EMA weights in the output directory.

    Raises:
        UserError: if an option is invalid, or another process has the lock.
    """
    options = parse(parser, argv, validates)
    with directory_lock(options["out"]):
        if options.pop("ema"):
            from mae_lm_fairseq.finetuning.sweep import ema_checkpoint

            options["checkpoint"] = ema_checkpoint(options["checkpoint"], options["out"])
        yield options


def parse(parser: argparse.ArgumentParser, argv: list[str] | None, validates: bool = True) -> dict[str, Any]:
    """Parse the options into a dictionary, with everything after ``--`` as ``extra``, and reduce fairseq's logging.

    Args:
        parser: the parser of a script.
        argv: the arguments; None for those of the program.
        validates: whether runs are validated during training.

    Raises:
        UserError: if a learning rate is given twice, the tokenizer is missing, or an option after ``--`` would
            contradict the sweep or have no effect.
    """
    words = sys.argv[1:] if argv is None else argv
    end = words.index("--") if "--" in words else len(words)
    options = vars(parser.parse_args(words[:end]))
    configure_logging()
    _check_extra(words[end + 1 :], validates)
    rates = [f"{rate:g}" for rate in options["learning_rates"] or ()]  # as in the names of runs
    if repeated := [rate for rate in rates if rates.count(rate) > 1]:
        raise UserError(f"--learning-rates: {repeated[0]} is given twice, to six digits; remove one")
    checkpoint = None if options["checkpoint"] == "none" else Path(options["checkpoint"])
    tokenizer = options["tokenizer"]
    if tokenizer is None:
        if checkpoint is None or os.path.isfile(checkpoint):
            raise UserError(f"--checkpoint {checkpoint} is not a bundle, which has a tokenizer; add --tokenizer")
        tokenizer = checkpoint
    return {**options, "checkpoint": checkpoint, "tokenizer": tokenizer, "extra": words[end + 1 :]}


def _check_extra(words: Sequence[str], validates: bool) -> None:
    for option in (word.partition("=")[0] for word in words):
        if option in _SET_BY_SWEEP:
            raise UserError(f"{option} after -- would contradict the sweep's own; use {_SET_BY_SWEEP[option]}")
        if option in _OF_VALIDATION and not validates:
            raise UserError(f"{option} after -- has no effect: the last checkpoint of each run is used; leave it out")


def value_of(option: str, words: Sequence[str]) -> str | None:
    """Return the value of an option among command-line words, the last one if it is repeated; None without it."""
    value = None
    for word, following in itertools.zip_longest(words, words[1:]):
        name, equals, attached = word.partition("=")
        if name == option:
            value = attached if equals else following
    return value


def print_summary(metrics: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Print the chosen metrics of ``results.json``, and where the report is."""
    for name, metric in metrics.items():
        print(f"{name}: median {metric['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in metric['values'])}")
    print(f"report: {out / 'report.md'}")
