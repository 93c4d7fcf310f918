#!/usr/bin/env python3
"""Run or resume a stage of the evidence study of docs/results/plan.md, or write its report.

The stages come in the order pilot, causal, main, further; the later ones use the pilot's learning rates. A stage leaves
OUT/STAGE.json, and the report OUT/report.md with its figures. Give relative paths: they are part of the results.

Example:
    scripts/study.py pilot --data-bin data-bin --text valid.txt --probe ewt --pairs pairs --out study
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.experiments.evidence.settings import EXTENTS, Files, Setup
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.logging import configure_logging

STAGES = ("pilot", "causal", "main", "further")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "stage", choices=(*STAGES, "report"), help="the stage to run, or the report of all that have run"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory")
    parser.add_argument("--data-bin", type=Path, metavar="DIR", help="data-bin of the training text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="held-out text")
    parser.add_argument("--probe", type=Path, metavar="DIR", help="directory with train, dev and test.conllu.xz")
    parser.add_argument("--pairs", type=Path, metavar="DIR", help="directory with blimp/ and zorro/")
    parser.add_argument("--size", choices=EXTENTS, default="full", help="default: %(default)s")
    parser.add_argument(
        "--jobs", type=positive, default=2, metavar="N", help="parallel processes (default: %(default)s)"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run a stage, or write the report."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.analysis.figures import check_matplotlib
    from mae_lm_fairseq.analysis.probing import check_sklearn
    from mae_lm_fairseq.experiments.evidence.study import causal, further, main_runs, pilot

    check_matplotlib()
    if arguments.stage == "report":
        _report(arguments.out)
        return
    check_sklearn()
    for name in ("data_bin", "text", "probe", "pairs"):
        if getattr(arguments, name) is None:
            raise UserError(f"the stage {arguments.stage} needs --{name.replace('_', '-')}")
    probe, pairs = arguments.probe, arguments.pairs
    conllu = (probe / f"{part}.conllu.xz" for part in ("train", "dev", "test"))
    files = Files(arguments.data_bin, arguments.text, *conllu, pairs / "blimp", pairs / "zorro")
    files.check()
    run = {"pilot": pilot, "causal": causal, "main": main_runs, "further": further}[arguments.stage]
    run(Setup(arguments.out, files, arguments.size, arguments.jobs))
    print(f"{arguments.out / arguments.stage}.json")


def _report(out: Path) -> None:
    from mae_lm_fairseq.experiments.evidence.report import write_report
    from mae_lm_fairseq.utils.files import read_json

    paths = {stage: out / f"{stage}.json" for stage in STAGES}
    stages = {stage: read_json(path) for stage, path in paths.items() if path.exists()}
    if not stages:
        raise UserError(f"{out} has no results of a stage")
    write_report(out, stages)
    print(f"Report: {out / 'report.md'}")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
