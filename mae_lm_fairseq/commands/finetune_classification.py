"""Fine-tune a classifier or regressor of texts, or of pairs of texts, on your own files: learning rates x seeds.

Files end in .tsv (a tab between cells, no quoting, as in GLUE), .csv (quoted where needed) or .jsonl (one object per
line), and name their columns. The labels are those of the training file. If they are numbers, not all of them
integers, or with --regression, scores are predicted, and the metrics are Pearson and Spearman correlation. Otherwise
the metrics are accuracy, which chooses the model, F1 (of the last of two labels in sorted order; macro for three or
more) and Matthews correlation.

Started again with the same directory, it resumes. It writes results.json, report.md and model/, the best model, which
mae-lm predict takes. Arguments after -- are passed to fairseq-train and override its options.

Example:
    mae-lm finetune classification --train reviews/train.tsv --dev reviews/dev.tsv --text sentence --label sentiment \\
        --checkpoint checkpoints/mae_lm/checkpoint_last.pt --tokenizer data-bin --out results/reviews
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.finetuning.options import add_options, locked_options, print_summary


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; its names are those of ``Options``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--train", type=Path, required=True, metavar="FILE", help="training file")
    add("--dev", type=Path, required=True, metavar="FILE", help="development file, which chooses the model")
    add("--test", type=Path, metavar="FILE", help="file to predict with the best model, and to evaluate if labelled")
    add("--text", required=True, metavar="COLUMN", help="column of the text, or of the first text of a pair")
    add("--text-pair", metavar="COLUMN", help="column of the second text of a pair")
    add("--label", required=True, metavar="COLUMN", help="column of the label or score")
    add("--regression", action="store_true", help="predict scores, even if all labels are integers")
    add_options(parser, "RoBERTa's, 1e-5 2e-5 3e-5")
    add("--skip-malformed", action="store_true", help="leave malformed rows out of training and development files")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    with locked_options(parser(), argv) as options:
        from mae_lm_fairseq.finetuning.classification.run import Options, finetune

        print_summary(finetune(Options(**options))["metrics"], options["out"])
