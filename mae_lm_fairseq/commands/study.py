"""Compare models over seeds, as a plan says: train, measure, test, report.

PLAN is the name of a plan of this package or a TOML file of yours (docs/studies.md); "mae-lm study list" lists the
former, and what can be measured. Writes OUT/results.json, OUT/report.md and figures. The same command resumes; a plan
that was extended by seeds, models, measures or checkpoints runs only what is new.

Example:
    mae-lm study presets --out presets --jobs 2
    mae-lm study mine.toml --out mine --dry-run
"""

import argparse
from dataclasses import fields
from pathlib import Path

from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.logging import configure_logging

LIST = "list"


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", metavar="PLAN", help=f"name or file of a plan, or {LIST!r}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output directory")
    parser.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="trainings at the same time (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only check the plan, and print what it would cost")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    if arguments.plan == LIST:
        print(listing())
        return
    from mae_lm_fairseq.workflows.study.plan import read_plan

    plan = read_plan(arguments.plan)
    if arguments.out is None and not arguments.dry_run:
        raise UserError("--out is missing; only --dry-run needs none")
    configure_logging()
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.workflows.study.checks import check

    if arguments.dry_run:
        from mae_lm_fairseq.workflows.study.dry_run import dry_run

        print(dry_run(plan, check(plan, needs_files=plan.data.data_bin.exists())))
        return
    check_matplotlib()
    check(plan)
    from mae_lm_fairseq.utils.locks import directory_lock
    from mae_lm_fairseq.workflows.study.engine import Study

    with directory_lock(arguments.out):
        Study(plan, arguments.out, arguments.jobs).run()
    print(f"Report: {arguments.out / 'report.md'}")


def listing() -> str:
    """Return the shipped plans, the measures with their options, and the endpoints."""
    from mae_lm_fairseq.workflows.study.endpoints import ENDPOINTS
    from mae_lm_fairseq.workflows.study.measures import MEASURES
    from mae_lm_fairseq.workflows.study.plan import SHIPPED, read_plan

    lines = ["plans"]
    for name, path in SHIPPED.items():
        lines += [f"  {name:20}{read_plan(name).title}", f"  {'':20}{path}"]
    lines += ["", "measures"]
    for name, kind in MEASURES.items():
        options = ", ".join(field.name for field in fields(kind.options))
        values = ", ".join([*(kind.numbers or ()), *kind.by_layer]) or "the task's metrics"
        lines += [
            f"  {name:20}{kind.options.__doc__.splitlines()[0]}",
            *[f"  {'':20}options: {options}"] * bool(options),
        ]
        lines.append(f"  {'':20}values: {values}")
    lines += ["", "endpoints"]
    lines += [f"  {name:26}{function.__doc__.splitlines()[0]}" for name, function in ENDPOINTS.items()]
    return "\n".join(lines).replace("`", "")
