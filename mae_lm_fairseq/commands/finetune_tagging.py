"""Fine-tune a model that labels words, such as part-of-speech tags or named entities: learning rates x seeds.

Files are CoNLL-U, if their names end in .conllu (or .conllu.gz), or have one word per line: the word in the first
column, its label in another, with tabs or white space between them, and empty lines between sentences. Entities are in
BIO, IOB1 or BIOES; their metrics are precision, recall and F1, over all types and by type. For other labels it is
accuracy.

Started again with the same directory, it resumes. It writes results.json, report.md, the labels of the development and
test files in their own formats, and model/, the best model, which mae-lm predict takes. Arguments after -- are passed
to fairseq-train and override its options.

Example:
    mae-lm finetune tagging --train train.conll --dev dev.conll --column 2 \\
        --checkpoint checkpoints/mae_lm/checkpoint_last.pt --tokenizer data-bin --out results/entities
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
    add(
        "--test", type=Path, metavar="FILE", help="file to label with the best model, and to evaluate if it is labelled"
    )
    add(
        "--column",
        required=True,
        metavar="NAME|N",
        help="column of the labels: its name in CoNLL-U, such as UPOS, or in a line # global.columns; otherwise its "
        "number, from 1 (the last of the training file is -1)",
    )
    add_options(parser, "BERT's, 2e-5 3e-5 5e-5; ours, 5e-4, for tiny and small")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    with locked_options(parser(), argv, validates=False) as options:
        from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR
        from mae_lm_fairseq.finetuning.tagging.run import Options, finetune

        metrics = finetune(Options(**options))["metrics"]
        shown = {name: metric for name, metric in metrics.items() if SEPARATOR not in name}
        print_summary(shown, options["out"])
