"""Pretrain MAE-LM and the RoBERTa preset on the same text, and write a report that compares them.

Writes OUT/report.md, OUT/results.json and a figure. Takes about ten minutes on two CPU cores. Started again, it
resumes.

Examples:
    mae-lm quickstart
    mae-lm quickstart --smoke --out quickstart-smoke
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--smoke", action="store_true", help="run all steps in less than 2 minutes; the models learn next to nothing"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="FILE",
        help="text file (also .gz, .xz, .bz2, .zst) to use instead of the docstrings of the installed Python packages",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="KIND_OR_PATH",
        help="tokenizer to train or to use, as for mae-lm prepare (default: sentencepiece-bpe)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output directory (default: quickstart/NAME)")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    options = parser().parse_args(argv)
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.utils.signals import signals_as_errors
    from mae_lm_fairseq.workflows.quickstart import quickstart

    configure_logging()
    check_matplotlib()
    if options.corpus:
        options.corpus = options.corpus.resolve()
    name = options.corpus.name.partition(".")[0] if options.corpus else "docstrings"
    if options.tokenizer:
        name += f"-{Path(options.tokenizer).name}"
    out = options.out or Path("quickstart") / (f"{name}-smoke" if options.smoke else name)
    with signals_as_errors(), directory_lock(out):
        quickstart(out.resolve(), options.smoke, options.corpus, options.tokenizer)
