"""Measure how often masked language models prefer the grammatical sentence of a minimal pair.

Sentences are scored by pseudo-log-likelihood: every token is masked once, and predicted through the decoder if the
model has one. Beside each model are its controls: the same architecture with random weights, the frequency of the
tokens, and the length of the sentence. Writes results.json and report.md.

Examples:
    mae-lm minimal-pairs checkpoint_last.pt --data-bin data-bin --pairs blimp --out results/blimp
    mae-lm minimal-pairs bert-base-cased --pairs blimp --unigram train.txt --out results/bert
"""

from mae_lm_fairseq.measures.options import MinimalPairsOptions as Options
from mae_lm_fairseq.utils.files import make_output_directory, write_results


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.measures.minimal_pairs.measurement import markdown, measure_models

    make_output_directory(options.out)
    results = measure_models(options)
    write_results(options.out, results, markdown(results))
    print(f"{options.out}: results.json, report.md")
