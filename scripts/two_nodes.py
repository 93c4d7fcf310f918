#!/usr/bin/env python3
"""Train on two nodes, which are namespaces of this machine, with one rank on each.

The nodes reach each other and nothing else, and are removed at the end, also after Ctrl-C. Each runs torchrun with
fairseq-train; both have this machine's files.

Example:
    scripts/two_nodes.py -- data-bin --user-dir mae_lm_fairseq --task masked_autoencoder_lm \\
        --criterion masked_autoencoder_lm --arch mae_lm_tiny --sample-break-mode complete_doc --tokens-per-sample 64 \\
        --batch-size 16 --optimizer adam --lr 1e-3 --max-update 100 --cpu --save-dir checkpoints
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.utils.command_line import Options, Rest, parse
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program


@dataclass(frozen=True)
class NodeOptions(Options):
    """Options of the program.

    Attributes:
        arguments: arguments of fairseq-train.
    """

    arguments: Rest


def main(options: NodeOptions) -> None:
    """Start torchrun on both nodes and wait.

    Raises:
        UserError: if it fails on a node, or this machine does not allow namespaces.
    """
    if not options.arguments:
        raise UserError("the arguments of fairseq-train are missing: two_nodes.py -- DATA_BIN ...")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed
    from tests.support.nodes import TORCHRUN, two_nodes

    command = [*map(str, TORCHRUN), "--nnodes", "2", "-m", "fairseq_cli.train", *options.arguments]
    with two_nodes() as nodes:
        print(f"on each node: {shlex.join(command)}", flush=True)
        started = [node.start(*command, cwd=Path.cwd()) for node in nodes]
        codes = [torchrun.wait() for torchrun in started]
    if any(codes):
        raise UserError(f"torchrun ended with exit codes {codes[0]} and {codes[1]}; see above")


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(NodeOptions, sys.argv[1:], __doc__, "two_nodes.py"))
