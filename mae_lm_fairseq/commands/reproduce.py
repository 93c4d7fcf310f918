"""Reproduce the findings of MAE-LM's and 3ML's papers at small scale: pretraining, ranks, fine-tuning, a report.

Every variant is pretrained with several seeds on the same text, and its checkpoints are fine-tuned on one task. Without
your own data the text is that of docstrings, and the task tells adjacent lines from others. Writes OUT/report.md,
OUT/results.json and figures. Started again, it resumes.

Example:
    mae-lm reproduce --scale smoke --out reproduction
"""

import argparse
import shlex
import sys
from pathlib import Path

from mae_lm_fairseq.downstream.glue.tasks import TASKS
from mae_lm_fairseq.experiments.scales import SCALES
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.logging import quieten


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scales = "; ".join(f"{name}: {scale.updates:,} updates of {scale.size} models" for name, scale in SCALES.items())
    parser.add_argument("--scale", required=True, choices=SCALES, help=scales)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where everything goes")
    parser.add_argument("--data-bin", type=Path, metavar="DIR", help="text, made by mae-lm prepare")
    parser.add_argument("--glue-dir", type=Path, metavar="DIR", help="with --data-bin: a local copy of GLUE")
    parser.add_argument("--task", choices=TASKS, help="of GLUE, with --glue-dir (default: STS-B)")
    parser.add_argument("--jobs", type=positive, default=2, metavar="N", help="runs at a time (default: %(default)s)")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(words)
    from mae_lm_fairseq.analysis.figures import check_matplotlib
    from mae_lm_fairseq.experiments.reproduction import given_data, reproduce
    from mae_lm_fairseq.experiments.reproduction_report import write_report

    quieten()
    check_matplotlib()
    if (options.data_bin is None) != (options.glue_dir is None):
        raise UserError("--data-bin and --glue-dir go together: give both, or neither")
    if options.task and not options.glue_dir:
        raise UserError("--task is for a copy of GLUE: give --data-bin and --glue-dir too, or leave it out")
    given, out = None, options.out.resolve()
    if options.data_bin:
        given = given_data(options.data_bin.resolve(), options.glue_dir.resolve(), options.task or "STS-B")
    content = reproduce(options.scale, out, given, options.jobs)
    write_report(out, content, shlex.join(["mae-lm", "reproduce", *words]))
    print(f"Report: {options.out / 'report.md'}")
