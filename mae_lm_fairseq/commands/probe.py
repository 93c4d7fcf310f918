"""Measure what linear probes read off the frozen hidden states of every layer.

For each layer a logistic regression predicts a column of CoNLL-U files, such as the part of speech, from the state of
each word's first subword. Its controls are the embeddings (layer 0), the same architecture with random weights, and
the label that is most frequent in training. Writes results.json and report.md.

Example:
    mae-lm probe checkpoint_last.pt --data-bin data-bin --train ewt-train.conllu --test ewt-test.conllu \\
        --dev ewt-dev.conllu --column UPOS --limit 2500 --out results/upos
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.measures.rank_options import STOCK
from mae_lm_fairseq.measures.reader_options import add_models
from mae_lm_fairseq.text.conllu import LABELS
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.files import make_output_directory, write_results
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser, f"a Hugging Face model of type {', '.join(STOCK)}")
    for name in ("train", "test"):
        parser.add_argument(
            f"--{name}", required=True, type=Path, metavar="FILE", help=f"CoNLL-U, plain or compressed, to {name} on"
        )
    parser.add_argument(
        "--dev", type=Path, metavar="FILE", help="CoNLL-U to choose the best layer on (default: --test)"
    )
    parser.add_argument("--column", required=True, choices=LABELS, help="the column to predict")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="train on N sentences, evenly spaced (default: all)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.measures.probes import markdown, measure_models

    make_output_directory(arguments.out)
    results = measure_models(arguments)
    write_results(arguments.out, results, markdown(results))
    print(f"{arguments.out}: results.json, report.md")
