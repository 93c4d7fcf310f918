"""Fine-tune on a task of GLUE, from a model to the number in the table: learning rates x seeds.

Started again with the same directory, it resumes. It writes results.json, report.md, the predictions on the test sets
in the format of the GLUE server, and model/, a bundle of the best run. Arguments after -- are passed to fairseq-train
and override its options.

The copy of GLUE has the official files (GLUE/RTE/train.tsv) or those of the Hugging Face hub (GLUE/rte/train.parquet,
.jsonl or .json).

Example:
    mae-lm finetune glue MNLI checkpoints/mae_lm/checkpoint_last.pt --glue-dir GLUE --data-bin data-bin --out mnli
    mae-lm finetune glue RTE mnli/model --from-mnli --glue-dir GLUE --out rte
"""

from mae_lm_fairseq.finetuning.options import GlueOptions as Options


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.finetuning.driver import finetune
    from mae_lm_fairseq.finetuning.results import print_summary

    print_summary(finetune(options)["metrics"], options.out)
