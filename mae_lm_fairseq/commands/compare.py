"""Train the presets of one size on the same text, or the ablations of MAE-LM, and compare them in one table.

Writes OUT/table.md and OUT/table.json. Started again, it runs only what is missing.

Example:
    mae-lm compare data-bin --size tiny --updates 1000 --out presets
"""

import argparse
import shlex
import sys
from pathlib import Path

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.utils.arguments import positive
from mae_lm_fairseq.utils.logging import configure_logging


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA_BIN", type=Path, help="data-bin made by mae-lm prepare")
    parser.add_argument("--size", required=True, metavar="SIZE", help=f"one of {', '.join(SIZES)}")
    parser.add_argument("--updates", required=True, type=positive, metavar="N", help="updates per variant")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="output directory")
    parser.add_argument("--ablations", action="store_true", help="train the ablations of MAE-LM instead of the presets")
    parser.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="number of parallel runs (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="threads per run (default: %(default)s)"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(words)
    configure_logging()
    from mae_lm_fairseq.experiments.preset_comparison import ablations, compare, presets
    from mae_lm_fairseq.recipes.training_command import check_data

    check_data(options.data)
    variants = (ablations if options.ablations else presets)(options.size)
    title = f"{'Ablations' if options.ablations else 'Presets'} of size {options.size}"
    command = shlex.join(["mae-lm", "compare", *words])
    how = {"jobs": options.jobs, "threads": options.threads}
    rows = compare(options.data.resolve(), variants, options.updates, options.out.resolve(), title, command, **how)
    for row in rows:
        print(f"{row['title']:55} {row['valid_loss']:.3f} nats  {row['seconds_per_update']:.3f} s per update")
    print(f"Table: {options.out / 'table.md'}")
