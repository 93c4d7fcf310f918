"""Measure what linear probes read off the frozen hidden states of every layer.

For each layer a logistic regression predicts a column of CoNLL-U files, such as the part of speech, from the state of
each word's first subword. Its controls are the embeddings (layer 0), the same architecture with random weights, and
the label that is most frequent in training. Writes results.json and report.md.

Example:
    mae-lm probe checkpoint_last.pt --data-bin data-bin --train ewt-train.conllu --test ewt-test.conllu \\
        --dev ewt-dev.conllu --column UPOS --limit 2500 --out results/upos
"""

from mae_lm_fairseq.measures.options import ProbeOptions as Options
from mae_lm_fairseq.utils.files import make_output_directory, write_results


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.measures.probes import markdown, measure_models

    make_output_directory(options.out)
    results = measure_models(options)
    write_results(options.out, results, markdown(results))
    print(f"{options.out}: results.json, report.md")
