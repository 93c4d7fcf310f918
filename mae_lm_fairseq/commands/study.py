"""Compare models over seeds, as a plan says: train, measure, test, report.

PLAN is the name of a plan of this package or a TOML file of yours (docs/studies.md); "mae-lm study list" lists the
former, and what can be measured. Writes OUT/results.json, OUT/results.csv, OUT/report.md and figures. The same command
resumes, and runs only what is new after a change of the plan.

Example:
    mae-lm study presets --out presets --jobs 2
    mae-lm study mine.toml --out mine --dry-run
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.study.plan import listing, read_plan
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.user_directory import check_outside
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options as Base
from mae_lm_fairseq.utils.directories import REPORT, RESULTS
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import signals_as_errors


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of a study.

    Attributes:
        plan: name or file of a plan, or "list".
        out: output directory.
        jobs: trainings at the same time.
        dry_run: only check the plan, and print what it would cost.
    """

    plan: Annotated[str, Argument("PLAN", positional=True)]
    out: Directory | None = None
    jobs: Count = 1
    dry_run: bool = False


def main(options: Options) -> None:
    """Run the command."""
    if options.plan == "list":
        print(listing())
        return
    check_outside(Path(options.plan), "the plan")
    plan = read_plan(options.plan)

    # These need fairseq, for which mistakes in the plan do not wait.
    from mae_lm_fairseq.study.checks import check, dry_run, equal_starts
    from mae_lm_fairseq.study.engine import run_study
    from mae_lm_fairseq.study.history import PLAN
    from mae_lm_fairseq.study.report import TABLE
    from mae_lm_fairseq.study.speed import SPEED

    if options.dry_run:
        print(dry_run(plan, check(plan, needs_files=plan.data.data_bin.exists())))
        return
    if options.out is None:
        raise UserError("--out is missing; only --dry-run needs none")
    import matplotlib  # noqa: F401  before long work that ends in figures
    import pandas  # noqa: F401  and in tables

    check(plan)
    for sentence in equal_starts(plan):
        print(sentence, flush=True)
    owned = (PLAN, RESULTS, REPORT, TABLE, "runs", SPEED)
    with signals_as_errors(), directory_lock(options.out), Products(options.out, "mae-lm study", owned):
        run_study(plan, options.out, options.jobs)
    print(f"Report: {options.out / 'report.md'}")
