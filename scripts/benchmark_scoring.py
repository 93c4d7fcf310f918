#!/usr/bin/env python3
"""Time the scoring of sentences by pseudo-log-likelihood, on this CPU.

Compared with the bare forward passes of the same batches; the two take turns, and the ratio is the median of the
rounds' ratios.
"""

import argparse
import statistics

from mae_lm_fairseq.core.config import PRESETS, SIZES
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging
from mae_lm_fairseq.utils.versions import provenance


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="mae_lm", help="default: %(default)s")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="default: %(default)s")
    parser.add_argument("--sentences", type=positive, default=500, metavar="N", help="default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the numbers here")
    return parser


def main():
    """Measure and print."""
    arguments = parser().parse_args()
    from benchmark.scoring import measure

    configure_logging()
    found = measure(arguments.preset, arguments.size, arguments.sentences, arguments.rounds)
    for name in ("scoring", "forward"):
        seconds = statistics.median(getattr(found, name))
        print(f"{name:8} {seconds:7.2f} s   {found.tokens / seconds:,.0f} tokens per second")
    print(f"scoring runs at {found.ratio:.0%} of the rate of the forward passes")
    if arguments.json:
        write_json(arguments.json, provenance() | vars(found))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
