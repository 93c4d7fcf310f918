"""Reproduce the findings of MAE-LM's and 3ML's papers at small scale: pretraining, ranks, fine-tuning, a report.

Every variant is pretrained with several seeds on the same text, and its checkpoints are fine-tuned on one task. Without
your own data, the text is docstrings, and the task is to distinguish adjacent lines from others. Writes OUT/report.md,
OUT/results.json and figures. Started again, it resumes.

Example:
    mae-lm reproduce --scale smoke --out reproduction
    mae-lm reproduce --scale base --dry-run
"""

import argparse
import shlex
import sys
from pathlib import Path

from mae_lm_fairseq.downstream.glue.tasks import TASKS
from mae_lm_fairseq.experiments.scales import SCALES
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scales = "; ".join(f"{name}: {scale.updates:,} updates of {scale.size} models" for name, scale in SCALES.items())
    parser.add_argument("--scale", required=True, choices=SCALES, help=scales)
    parser.add_argument("--out", type=Path, metavar="DIR", help="output directory")
    parser.add_argument(
        "--dry-run", action="store_true", help="only print the updates, memory and hours that pretraining would take"
    )
    parser.add_argument("--data-bin", type=Path, metavar="DIR", help="data-bin for pretraining, made by mae-lm prepare")
    parser.add_argument("--glue-dir", type=Path, metavar="DIR", help="local copy of GLUE, with --data-bin")
    parser.add_argument("--task", choices=TASKS, help="task of GLUE, with --glue-dir (default: STS-B)")
    parser.add_argument(
        "--jobs", type=positive, default=2, metavar="N", help="number of parallel runs (default: %(default)s)"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(words)
    if options.dry_run:
        from mae_lm_fairseq.experiments.reproduction_plan import dry_run

        print(dry_run(options.scale))
        return
    if options.out is None:
        raise UserError("--out is missing; only --dry-run needs none")
    from mae_lm_fairseq.analysis.figures import check_matplotlib
    from mae_lm_fairseq.experiments.reproduction import given_data, reproduce
    from mae_lm_fairseq.experiments.reproduction_report import write_report

    configure_logging()
    check_matplotlib()
    if (options.data_bin is None) != (options.glue_dir is None):
        raise UserError("--data-bin and --glue-dir need each other; give both or neither")
    if options.task and not options.glue_dir:
        raise UserError("--task needs a copy of GLUE; add --data-bin and --glue-dir, or remove --task")
    if SCALES[options.scale].text is None and not options.data_bin:
        raise UserError(
            f"--scale {options.scale} needs --data-bin and --glue-dir: docstrings are too little text for it"
        )
    given, out = None, options.out.resolve()
    if options.data_bin:
        given = given_data(options.data_bin.resolve(), options.glue_dir.resolve(), options.task or "STS-B")
    content = reproduce(options.scale, out, given, options.jobs)
    write_report(out, content, shlex.join(["mae-lm", "reproduce", *words]))
    print(f"Report: {options.out / 'report.md'}")
