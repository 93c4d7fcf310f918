#!/usr/bin/env python3
"""Train on two nodes, which are namespaces of this machine, with one rank on each.

The nodes reach each other and nothing else, and are removed at the end, also after Ctrl-C. Each runs torchrun with
fairseq-train; both have this machine's files.
"""

import argparse
import shlex
import sys
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] -- arguments of fairseq-train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="arguments of fairseq-train, after --")
    return parser


def main(arguments: list[str]) -> None:
    """Start torchrun on both nodes and wait.

    Raises:
        UserError: if it fails on a node, or this machine does not allow namespaces.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed
    from tests.support.nodes import TORCHRUN, two_nodes

    command = [*map(str, TORCHRUN), "--nnodes", "2", "-m", "fairseq_cli.train", *arguments]
    with two_nodes() as nodes:
        print(f"on each node: {shlex.join(command)}", flush=True)
        started = [node.start(*command, cwd=Path.cwd()) for node in nodes]
        codes = [torchrun.wait() for torchrun in started]
    if any(codes):
        raise UserError(f"torchrun ended with exit codes {codes[0]} and {codes[1]}; see above")


if __name__ == "__main__":
    with errors_end_the_program():
        main(parser().parse_args().arguments)
