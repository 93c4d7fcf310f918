"""Fine-tune on SQuAD 1.1 or 2.0, from a checkpoint to exact match and F1: learning rates x seeds.

Started again with the same directory, it resumes. It writes results.json, report.md, and of the best run
predictions.json in the format of the official script, nbest.json, na_prob.json (the probabilities of no answer), and
model/, a bundle.
Arguments after -- are passed to fairseq-train and override its options.

Example:
    mae-lm finetune squad --train train-v1.1.json --dev dev-v1.1.json \\
        --checkpoint checkpoints/mae_lm/checkpoint_last.pt --tokenizer data-bin --out squad
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.finetuning.options import add_options, locked_options, print_summary
from mae_lm_fairseq.utils.arguments import positive


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--train", type=Path, required=True, metavar="FILE", help="training questions in SQuAD's JSON")
    add("--dev", type=Path, required=True, metavar="FILE", help="development questions in SQuAD's JSON")
    add_options(parser, "RoBERTa's, 1.5e-5; ours, 5e-4, for tiny and small")
    add("--version-2", action="store_true", help="SQuAD 2.0: questions may have no answer")
    add(
        "--tokens-per-sample",
        type=positive,
        metavar="N",
        help="maximum sequence length (default: 384, or the model's if that is smaller)",
    )
    add(
        "--doc-stride",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="tokens between the starts of two windows of a long context (default: 128)",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    with locked_options(parser(), argv, validates=False) as options:
        from mae_lm_fairseq.finetuning.squad.run import Options, finetune

        metrics = finetune(Options(**options))["metrics"]
        shown = {name: metrics[name] for name in ("exact", "exact_match", "f1") if name in metrics}
        print_summary(shown, options["out"])
