"""Fine-tune on SQuAD 1.1 or 2.0, from a model to exact match and F1: learning rates x seeds.

Started again with the same directory, it resumes. It writes results.json, report.md, and of the best run
predictions.json in the format of the official script, na_prob.json (the probabilities of no answer), and model/, a
bundle.

Arguments after -- are passed to fairseq-train and override its options.

Example:
    mae-lm finetune squad checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train-v1.1.json \\
        --dev dev-v1.1.json --out squad
"""

from mae_lm_fairseq.finetuning.options import SquadOptions as Options


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.finetuning.driver import finetune
    from mae_lm_fairseq.finetuning.results import print_summary

    metrics = finetune(options)["metrics"]
    print_summary({name: metrics[name] for name in ("exact", "exact_match", "f1") if name in metrics}, options.out)
