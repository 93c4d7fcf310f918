"""Measure how often masked language models prefer the grammatical sentence of a minimal pair.

Sentences are scored by pseudo-log-likelihood: every token is masked once, and predicted through the decoder if the
model has one. Beside each model are its controls: the same architecture with random weights, the frequency of the
tokens, and the length of the sentence. Writes results.json and report.md.

Example:
    mae-lm minimal-pairs checkpoint_last.pt --data-bin data-bin --pairs blimp --out results/blimp
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.measures.reader_options import add_models
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.files import make_output_directory, write_results
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser, "a Hugging Face masked language model")
    parser.add_argument(
        "--pairs", required=True, type=Path, metavar="DIR", help="BLiMP's files (*.jsonl) or Zorro's (*.txt)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory")
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="PAIRS_PER_FILE",
        help="use this many pairs of each file, evenly spaced (default: all)",
    )
    parser.add_argument(
        "--mask-words", action="store_true", help="mask each token together with the later subwords of its word"
    )
    parser.add_argument(
        "--unigram",
        type=Path,
        metavar="FILE",
        help="text to count tokens in for the frequency control (default: for a checkpoint the training data, as "
        "counted in the data-bin's dict.txt; for other models the control is left out)",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.measures.minimal_pairs.measurement import measure_models
    from mae_lm_fairseq.measures.minimal_pairs.report import markdown

    make_output_directory(arguments.out)
    results = measure_models(arguments)
    write_results(arguments.out, results, markdown(results))
    print(f"{arguments.out}: results.json, report.md")
