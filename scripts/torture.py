#!/usr/bin/env python3
"""Inject faults into small training runs and damage their input, and count what is lost.

Prints a table of the faults, with how often each was tried, survived and lost, and writes it as JSON. The exit code is
nonzero if anything was lost. All faults take about half an hour on two cores, --quick less than twelve minutes.

With --two-nodes, the faults are those of a run on two nodes, which are namespaces of this machine; they take a quarter
of an hour.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq.utils.arguments import output_file
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--two-nodes", action="store_true", help="instead, let ranks and nodes of a run on two fail")
    parser.add_argument("--quick", action="store_true", help="try each fault fewer times")
    parser.add_argument("--json", required=True, type=output_file, metavar="FILE", help="JSON file for the results")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments and positions")
    return parser


def main(options: argparse.Namespace) -> None:
    """Inject all faults, one after the other."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads cannot be forked
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed
    try:
        from tests.fault_injection import crashes, datasets, inputs, models, nodes
        from tests.fault_injection.report import table
        from tests.fault_injection.training import Workplace, make_data, prepare_to_fork
    except ImportError as error:
        raise UserError(f"{error}; install this package with its extras: pip install '.[test,hf]'") from None
    prepare_to_fork()
    on_one = (*crashes.FAULTS, *inputs.FAULTS, *datasets.FAULTS, *models.FAULTS)
    rows = []
    with tempfile.TemporaryDirectory(prefix="torture-") as directory:
        data = make_data(Path(directory, "data"))
        for fault in nodes.FAULTS if options.two_nodes else on_one:
            place = Workplace(Path(directory, fault.rows.__name__), data, options.seed)
            for row in fault.rows(place, fault.quick if options.quick else fault.full):
                rows.append(row)
                print(f"{row.fault}: tried {row.tried}, lost {len(row.losses)}", *row.losses, sep="\n  ", flush=True)
    write_json(options.json, provenance() | {"quick": options.quick, "rows": [asdict(row) for row in rows]})
    print(f"\n{table(rows)}")
    if any(row.losses for row in rows):
        raise UserError("something was lost: see above")


if __name__ == "__main__":
    with errors_end_the_program():
        main(parser().parse_args())
