#!/usr/bin/env python3
"""Time training steps of MAE-LM, the RoBERTa preset and 3ML's setting beside fairseq, Hugging Face and the authors.

Every subject trains in a process of its own on the same batches, with the same optimizer (torch's fused AdamW), the
same dropout (0.1) and all cores; the processes take turns, a step each. Speed counts all tokens of the text. Peak
memory is that of tensors: torch.cuda.max_memory_allocated on a GPU, the profiler's allocations on a CPU. FLOPs are
computed by formula. A profile of our own subjects shows where the time of a step goes. cpu-small and cpu-base end
within 12 minutes on two cores.

Example:
    scripts/benchmark.py --setting cpu-small --json cpu-small.json --figure cpu-small.png
"""

import argparse
from pathlib import Path

from benchmark.settings import SETTINGS, subjects
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, required=True, help="sizes, device and subjects")
    parser.add_argument("--authors-repo", type=Path, metavar="DIR", help="importable copy of github.com/yumeng5/MAE-LM")
    parser.add_argument("--steps", type=positive, metavar="N", help="timed steps per subject (default: the setting's)")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE", help="JSON file for all results")
    parser.add_argument("--figure", type=output_file, metavar="FILE", help="PNG file for a plot of speed and memory")
    return parser


def main() -> None:
    """Measure, print the table, and write the files."""
    arguments = parser().parse_args()
    from benchmark import report
    from benchmark.figure import draw
    from benchmark.measurement import measure

    configure_logging()
    setting = SETTINGS[arguments.setting]
    groups = subjects(setting, arguments.authors_repo)
    if arguments.authors_repo and not any(subject.kind == "authors" for group in groups for subject in group):
        raise UserError(f"--authors-repo: --setting {arguments.setting} does not measure the authors' code; remove it")
    results = measure(setting, groups, arguments.steps or setting.steps)
    print(report.table(results))
    write_json(arguments.json, report.as_json(results))
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    with errors_end_the_program():
        main()
