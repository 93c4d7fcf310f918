#!/usr/bin/env python3
"""Fine-tune on SQuAD 1.1 or 2.0, from a checkpoint to exact match and F1: learning rates x seeds.

Started again with the same directory, it goes on where it was. It leaves results.json, report.md, and of the best run
predictions.json in the format of the official script, nbest.json, and na_prob.json, the probabilities of no answer.
What follows -- goes to fairseq-train, and wins.
"""

import argparse
import logging
from pathlib import Path

from mae_lm_fairseq.experiments.squad import Options, finetune


def parser() -> argparse.ArgumentParser:
    """The command line; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--train", type=Path, required=True, metavar="FILE", help="training questions in SQuAD's JSON")
    add("--dev", type=Path, required=True, metavar="FILE", help="development questions in SQuAD's JSON")
    add("--checkpoint", required=True, metavar="FILE", help="of pretraining; 'none' for random weights")
    add("--tokenizer", type=Path, required=True, metavar="DATA_BIN", help="the data-bin of the pretraining run")
    add("--out", type=Path, required=True, metavar="DIR", help="where everything goes")
    add("--arch", metavar="ARCH", help="with --checkpoint none: the architecture")
    add("--version-2", action="store_true", help="SQuAD 2.0: questions may have no answer")
    add("--seeds", type=positive, default=5, metavar="N", help="seeds 1 to N (default: %(default)s)")
    add(
        "--learning-rates",
        type=float,
        nargs="+",
        metavar="LR",
        help="(default: RoBERTa's, 1.5e-5; ours, 5e-4, for tiny and small)",
    )
    add("--max-updates", type=positive, metavar="N", help="end earlier than after the recipe's epochs")
    add(
        "--tokens-per-sample",
        type=positive,
        metavar="N",
        help="longest sample (default: 384, or as many as the model has positions)",
    )
    add(
        "--doc-stride",
        type=positive,
        default=Options.doc_stride,
        metavar="N",
        help="a longer context goes on this many pieces later in its next sample (default: %(default)s)",
    )
    add("--jobs", type=positive, default=1, metavar="N", help="runs at the same time (default: %(default)s)")
    add("--threads", type=positive, default=1, metavar="N", help="threads of each run (default: %(default)s)")
    add("extra", nargs="*", metavar="-- OPTION", help="options of fairseq-train")
    return parser


def positive(text: str) -> int:
    """A whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def main(argv: list[str] | None = None):
    """Run the command."""
    options = vars(parser().parse_args(argv))
    # Among fairseq's imports is one that makes the root logger print everything.
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)
    checkpoint = options.pop("checkpoint")
    content = finetune(Options(**options, checkpoint=None if checkpoint == "none" else Path(checkpoint)))
    for name in ("exact", "exact_match", "f1"):
        if metric := content["metrics"].get(name):
            seeds = ", ".join(f"{value:.1f}" for value in metric["values"])
            print(f"{name}: median {metric['median']:.1f}, seeds {seeds}")
    print(f"report: {options['out'] / 'report.md'}")


if __name__ == "__main__":
    main()
