#!/usr/bin/env python3
"""Train a tiny model, kill it, resume it, and compare the result bit for bit with an undisturbed run.

Needs only the package and its core dependencies; scripts/test_environments.sh runs it on every Python.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program


def main() -> None:
    """Kill one run twice."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads cannot be forked
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed
    from tests.fault_injection.crashes import kills
    from tests.fault_injection.training import Workplace, make_data, prepare_to_fork

    prepare_to_fork()
    with tempfile.TemporaryDirectory() as directory:
        data = make_data(Path(directory, "data"))
        for row in kills(Workplace(Path(directory, "runs"), data), 2):
            print(f"{row.fault}: tried {row.tried}, lost {len(row.losses)}", *row.losses, sep="\n  ")
            if row.losses:
                raise UserError("training or resuming failed, see above")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
