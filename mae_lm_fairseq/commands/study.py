"""Compare models over seeds, as a plan says: train, measure, test, report.

PLAN is the name of a plan of this package or a TOML file of yours (docs/studies.md); "mae-lm study list" lists the
former, and what can be measured. Writes OUT/results.json, OUT/report.md and figures. The same command resumes, and runs
only what is new after a change of the plan.

Example:
    mae-lm study presets --out presets --jobs 2
    mae-lm study mine.toml --out mine --dry-run
"""

from dataclasses import fields

from mae_lm_fairseq.study.options import StudyOptions as Options
from mae_lm_fairseq.utils.errors import UserError

LIST = "list"


def main(options: Options) -> None:
    """Run the command."""
    if options.plan == LIST:
        print(listing())
        return
    from mae_lm_fairseq.study.plan import read_plan

    plan = read_plan(options.plan)
    if options.out is None and not options.dry_run:
        raise UserError("--out is missing; only --dry-run needs none")
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.study.checks import check

    if options.dry_run:
        from mae_lm_fairseq.study.dry_run import dry_run

        print(dry_run(plan, check(plan, needs_files=plan.data.data_bin.exists())))
        return
    check_matplotlib()
    check(plan)
    from mae_lm_fairseq.study.engine import Study
    from mae_lm_fairseq.utils.locks import directory_lock

    with directory_lock(options.out):
        Study(plan, options.out, options.jobs).run()
    print(f"Report: {options.out / 'report.md'}")


def listing() -> str:
    """Return the shipped plans, the measures with their options, and the endpoints."""
    from mae_lm_fairseq.study.endpoints import ENDPOINTS
    from mae_lm_fairseq.study.measures import MEASURES
    from mae_lm_fairseq.study.plan import SHIPPED, read_plan

    lines = ["plans"]
    for name, path in SHIPPED.items():
        lines += [f"  {name:20}{read_plan(name).title}", f"  {'':20}{path}"]
    lines += ["", "measures"]
    for name, kind in MEASURES.items():
        lines.append(f"  {name:20}{kind.__doc__.splitlines()[0]}")
        if options := ", ".join(field.name for field in fields(kind)):
            lines.append(f"  {'':20}options: {options}")
        values = ", ".join([*(kind.numbers or ()), *kind.by_layer]) or "the task's metrics"
        lines.append(f"  {'':20}values: {values}")
    lines += ["", "endpoints"]
    lines += [f"  {name:26}{function.__doc__.splitlines()[0]}" for name, function in ENDPOINTS.items()]
    return "\n".join(lines).replace("`", "")
