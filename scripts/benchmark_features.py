#!/usr/bin/env python3
"""Time feature extraction from sentences of different lengths, in comparison with stock transformers, on this CPU.

The stock model has the same weights: MPNetModel with the relative position bias, RobertaModel without it. It runs on
padded batches of 32 sentences, in the given order and sorted by length. The three take turns in every round; a speed-up
is the median of the rounds' ratios. Below them: where the time of our method goes.
"""

import argparse
import statistics

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging
from mae_lm_fairseq.utils.versions import provenance


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small", help="size of the encoder (default: %(default)s)")
    parser.add_argument("--no-bias", action="store_true", help="no relative positions; compare with RobertaModel")
    parser.add_argument("--bf16", action="store_true", help="both models in bfloat16 (default: float32)")
    parser.add_argument("--sentences", type=positive, default=1000, metavar="N", help="default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="JSON file for the results")
    return parser


def main():
    """Measure and print the results."""
    arguments = parser().parse_args()
    import torch

    from benchmark.features import measure
    from benchmark.operators import by_kind

    configure_logging()
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    found = measure(arguments.size, not arguments.no_bias, dtype, arguments.sentences, arguments.rounds)
    print(f"{found.tokens:,} tokens, {found.padded:,} with padding; largest difference {found.difference:.1e}")
    for name, seconds in found.seconds.items():
        print(
            f"{name:24} {statistics.median(seconds):7.2f} s   this package is {found.speedup(name):.2f} times as fast"
        )
    for kind, fraction in by_kind(found.operators).items():
        print(f"{kind:40} {fraction:6.1%}")
    if arguments.json:
        write_json(arguments.json, provenance() | vars(found))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
