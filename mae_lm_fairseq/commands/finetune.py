"""The verbs of fine-tuning: their help and options. The work is done in ``finetuning/driver.py``."""

from mae_lm_fairseq.finetuning.options import ClassificationOptions, GlueOptions, SquadOptions, TaggingOptions


class Glue:
    """Fine-tune on a task of GLUE, from a model to the number in the table: learning rates x seeds.

    Started again with the same directory, it resumes. It writes results.json, report.md, the predictions on the
    test sets in the format of the GLUE server, and model/, a bundle of the best run. Arguments after -- are passed
    to fairseq-train and override its options.

    The copy of GLUE has the official files (GLUE/RTE/train.tsv) or those of the Hugging Face hub
    (GLUE/rte/train.parquet, .jsonl or .json).

    Example:
        mae-lm finetune glue MNLI checkpoints/mae_lm/checkpoint_last.pt --glue-dir GLUE --data-bin data-bin --out mnli
        mae-lm finetune glue RTE mnli/model --from-mnli --glue-dir GLUE --out rte
    """

    Options = GlueOptions


class Classification:
    """Fine-tune a classifier or regressor of texts, or of pairs of texts, on your own files: learning rates x seeds.

    Files end in .tsv (a tab between cells, no quoting, as in GLUE), .csv (quoted where needed) or .jsonl (one
    object per line), and name their columns. The labels are those of the training file. If they are numbers, not
    all of them integers, or with --regression, scores are predicted, and the metrics are Pearson and Spearman
    correlation. Otherwise the metrics are accuracy, which chooses the model, F1 (of the last of two labels in
    sorted order; macro for three or more) and Matthews correlation.

    Started again with the same directory, it resumes. It writes results.json, report.md and model/, the best model,
    which mae-lm predict takes. Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune classification checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin \\
            --out results/reviews --train reviews/train.tsv --dev reviews/dev.tsv --text sentence --label sentiment
    """

    Options = ClassificationOptions


class Squad:
    """Fine-tune on SQuAD 1.1 or 2.0, from a model to exact match and F1: learning rates x seeds.

    Started again with the same directory, it resumes. It writes results.json, report.md, and of the best run
    predictions.json in the format of the official script, na_prob.json (the probabilities of no answer), and
    model/, a bundle.

    Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune squad checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train-v1.1.json \\
            --dev dev-v1.1.json --out squad
    """

    Options = SquadOptions


class Tagging:
    """Fine-tune a model that labels words, such as part-of-speech tags or named entities: learning rates x seeds.

    Files are CoNLL-U, if their names end in .conllu (or .conllu.gz), or have one word per line: the word in the
    first column, its label in another, with tabs or white space between them, and empty lines between sentences.
    The metrics of entities (BIO, IOB1 or BIOES) are precision, recall and F1, over all types and by type. For other
    labels it is accuracy.

    Started again with the same directory, it resumes. It writes results.json, report.md, the development and test
    files with predicted labels in a new last column, and model/, the best model, which mae-lm predict takes.
    Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune tagging checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train.conll \\
            --dev dev.conll --column 2 --out results/entities
    """

    Options = TaggingOptions
