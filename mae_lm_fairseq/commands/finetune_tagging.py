"""Fine-tune a model that labels words, such as part-of-speech tags or named entities: learning rates x seeds.

Files are CoNLL-U, if their names end in .conllu (or .conllu.gz), or have one word per line: the word in the first
column, its label in another, with tabs or white space between them, and empty lines between sentences. The metrics of
entities (BIO, IOB1 or BIOES) are precision, recall and F1, over all types and by type. For other labels it is accuracy.

Started again with the same directory, it resumes. It writes results.json, report.md, the development and test files
with predicted labels in a new last column, and model/, the best model, which mae-lm predict takes. Arguments after --
are passed to fairseq-train and override its options.

Example:
    mae-lm finetune tagging checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train.conll \\
        --dev dev.conll --column 2 --out results/entities
"""

from mae_lm_fairseq.finetuning.options import TaggingOptions as Options


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.finetuning.driver import finetune
    from mae_lm_fairseq.finetuning.results import print_summary
    from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR

    metrics = finetune(options)["metrics"]
    print_summary({name: metric for name, metric in metrics.items() if SEPARATOR not in name}, options.out)
