"""Fine-tune a classifier or regressor of texts, or of pairs of texts, on your own files: learning rates x seeds.

Files end in .tsv (a tab between cells, no quoting, as in GLUE), .csv (quoted where needed) or .jsonl (one object per
line), and name their columns. The labels are those of the training file. If they are numbers, not all of them
integers, or with --regression, scores are predicted, and the metrics are Pearson and Spearman correlation. Otherwise
the metrics are accuracy, which chooses the model, F1 (of the last of two labels in sorted order; macro for three or
more) and Matthews correlation.

Started again with the same directory, it resumes. It writes results.json, report.md and model/, the best model, which
mae-lm predict takes. Arguments after -- are passed to fairseq-train and override its options.

Example:
    mae-lm finetune classification checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --out results/reviews \\
        --train reviews/train.tsv --dev reviews/dev.tsv --text sentence --label sentiment
"""

from mae_lm_fairseq.finetuning.options import ClassificationOptions as Options


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.finetuning.driver import finetune
    from mae_lm_fairseq.finetuning.results import print_summary

    print_summary(finetune(options)["metrics"], options.out)
