#!/usr/bin/env python3
"""Inject faults into small training runs and damage their input, and count what is lost.

Prints a table of the faults, with how often each was tried, survived and lost, and writes it as JSON. The exit code is
nonzero if anything was lost. All faults take about half an hour on two cores, --quick less than twelve minutes.

With --two-nodes, the faults are those of a run on two nodes, which are namespaces of this machine; they take half an
hour.
"""

import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from mae_lm_fairseq.utils.command_line import Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance


@dataclass(frozen=True)
class FaultOptions(Options):
    """Options of the fault injection.

    Attributes:
        json: JSON file for the results.
        two_nodes: instead, let ranks and nodes of a run on two fail.
        kills: instead, only kill one run twice and resume it, which needs neither hypothesis nor transformers.
        quick: try each fault fewer times.
        seed: seed of the random moments and positions.
    """

    json: OutputFile
    two_nodes: bool = False
    kills: bool = False
    quick: bool = False
    seed: int = 0


def main(options: FaultOptions) -> None:
    """Inject all faults, one after the other."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads cannot be forked
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # tests/ is not installed
    try:
        faults = _faults(options)
        from tests.fault_injection.report import table
        from tests.fault_injection.training import Workplace, make_data, prepare_to_fork
    except ImportError as error:
        raise UserError(f"{error}; install this package with its extras: pip install '.[test,hf]'") from None
    prepare_to_fork()
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        data = make_data(Path(directory, "data"))
        for fault in faults:
            place = Workplace(Path(directory, fault.rows.__name__), data, options.seed)
            for row in fault.rows(place, fault.quick if options.quick else fault.full):
                rows.append(row)
                print(f"{row.fault}: tried {row.tried}, lost {len(row.losses)}", *row.losses, sep="\n  ", flush=True)
    write_json(options.json, provenance() | {"quick": options.quick, "rows": [asdict(row) for row in rows]})
    print(f"\n{table(rows)}")
    if any(row.losses for row in rows):
        raise UserError("something was lost: see above")


def _faults(options: FaultOptions) -> tuple:
    from tests.fault_injection import crashes

    if options.kills:
        return (crashes.Fault(crashes.kills, 2, 2, 2),)
    from tests.fault_injection import datasets, flips, inputs, interrupted, models, nodes

    modules = (crashes, interrupted, flips, inputs, datasets, models)
    return nodes.FAULTS if options.two_nodes else tuple(fault for module in modules for fault in module.FAULTS)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(FaultOptions, sys.argv[1:], __doc__, "fault_injection.py"))
