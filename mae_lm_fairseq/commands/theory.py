"""Check two statements of the MAE-LM paper on trained models.

Lemma 2.1: the rank of [MASK] rises through the layers. Theorem 2.2: real tokens leave dimensions to [MASK] alone.
Prints for each model what was measured, with intervals and a verdict, and what that does and does not show.

Example:
    mae-lm theory checkpoints/roberta/checkpoint_last.pt --text valid.txt --tokenizer data-bin
"""

import argparse

from mae_lm_fairseq.measures.rank_options import add_options
from mae_lm_fairseq.utils.arguments import output_file
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="JSON file for numbers and verdicts")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.measures.ranks import measure_models
    from mae_lm_fairseq.measures.theory import check_lemma, check_theorem, report

    profiles = measure_models(arguments)
    for profile in profiles:
        print(f"\n{report(profile)}")
    if arguments.json:
        found = {
            profile["label"]: {"lemma": check_lemma(profile), "theorem": check_theorem(profile)} for profile in profiles
        }
        write_json(arguments.json, found)
