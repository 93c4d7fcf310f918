#!/usr/bin/env python3
"""Fuzz a parser with atheris (pip install '.[fuzz]') until it fails.

Input that the parser rejects with an error message is no failure. Any other exception ends the program, which prints
the path of the failing input. The corpus is kept in build/fuzz, and the next start continues from it.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed

try:
    import atheris
except ImportError:
    raise SystemExit("error: atheris is not installed; pip install '.[fuzz]'") from None

# Instrument the whole package, before its first module is imported.
with atheris.instrument_imports(include=["mae_lm_fairseq"]):
    from mae_lm_fairseq.utils.arguments import positive
    from mae_lm_fairseq.utils.errors import errors_end_the_program
    from tests.fault_injection.parsers import PARSERS, parse


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=PARSERS, metavar="TARGET", help=f"one of {', '.join(PARSERS)}")
    parser.add_argument("--seconds", type=positive, default=60, metavar="N", help="duration (default: %(default)s)")
    return parser


def main(options: argparse.Namespace) -> None:
    """Run the fuzzer; atheris ends the process."""
    corpus, work = (Path("build", "fuzz", options.target, name) for name in ("corpus", "work"))
    for directory in (corpus, work):
        directory.mkdir(parents=True, exist_ok=True)
    (corpus / "sample").write_bytes(PARSERS[options.target].sample)
    arguments = [sys.argv[0], str(corpus), f"-max_total_time={options.seconds}", "-max_len=4096", "-timeout=10"]
    atheris.Setup(arguments, lambda content: parse(options.target, content, work) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    with errors_end_the_program():
        main(parser().parse_args())
