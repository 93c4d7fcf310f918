#!/usr/bin/env python3
"""Measure on the first GPU what CPUs cannot show: the program of docs/performance.md.

Each stage runs in processes of its own and has a time limit. Its results are in a JSON file that is written after every
measurement, so a stage that is killed leaves what it has measured. "all" goes on after a failed stage, and ends with
the report; "report" writes report.md from the JSON files. The names 0 to 6 are the stages in their order:
environment, tests, pretrain, peers, resume, curves, kernels. Nothing needs to be installed but what training needs (and
triton, for the last), and there are no data to carry: the programme writes its own text.

Example:
    scripts/benchmark/gpu_day_one.py all --out day-one
    scripts/benchmark/gpu_day_one.py 0 --out rehearsal --device cpu
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # neither this package nor scripts/ need be installed

from benchmark.day_one.page import write_report  # noqa: E402
from benchmark.day_one.stages import STAGES, run_stage  # noqa: E402
from mae_lm_fairseq.utils.command_line import Argument, Options, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import make_output_directory  # noqa: E402
from mae_lm_fairseq.utils.signals import signals_as_errors  # noqa: E402

NUMBERS = dict(zip("0123456", STAGES, strict=True))


@dataclass(frozen=True)
class DayOneOptions(Options):
    """Options of the programme.

    Attributes:
        stage: a stage by its name or number, all, or report.
        out: directory for the JSON files, the logs and the report.
        device: cpu rehearses the programme at a tiny size.
    """

    stage: Annotated[Literal["all", "report", *STAGES, *NUMBERS], Argument("STAGE", positional=True)]
    out: Annotated[Path, Argument("DIR")]
    device: Literal["cuda", "cpu"] = "cuda"


def main(options: DayOneOptions) -> None:
    """Run the stages and write the report.

    Raises:
        SystemExit: if a stage failed; the others ran.
    """
    make_output_directory(options.out)
    out = options.out.resolve()
    asked = NUMBERS.get(options.stage, options.stage)
    names = {"all": list(STAGES), "report": []}.get(asked, [asked])
    with signals_as_errors():  # so that a stage ends with this process
        failures = {name: problem for name in names if (problem := run_stage(name, out, options.device))}
    if asked in ("all", "report"):
        print(f"report: {write_report(out)}")
    if failures:
        raise SystemExit("failed: " + "; ".join(f"{name} ({problem})" for name, problem in failures.items()))


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(DayOneOptions, sys.argv[1:], __doc__, "gpu_day_one.py"))
