#!/usr/bin/env python3
"""Train the presets of one size on the same text, or the ablations of MAE-LM, and compare them in one table.

Leaves OUT/table.md and OUT/table.json. Started again, it runs only what is missing.
"""

import argparse
import shlex
import sys
from pathlib import Path

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.errors import UserError
from mae_lm_fairseq.experiments.preset_comparison import ablations, compare, presets


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA_BIN", type=Path, help="made by preprocess/pretrain/prepare.py")
    parser.add_argument("--size", required=True, metavar="SIZE", help=f"one of {', '.join(SIZES)}")
    parser.add_argument("--updates", required=True, type=int, metavar="N", help="of each variant")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where everything goes")
    parser.add_argument("--ablations", action="store_true", help="the ablations of MAE-LM instead of the presets")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each run (default: %(default)s)")
    options = parser.parse_args()
    for name in ("updates", "jobs", "threads"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)} must be at least 1")
    if not (options.data / "dict.txt").is_file():
        raise UserError(f"{options.data} is no data-bin: it has no dict.txt; preprocess/pretrain/prepare.py makes one")
    variants = (ablations if options.ablations else presets)(options.size)
    title = f"{'Ablations' if options.ablations else 'Presets'} of size {options.size}"
    command = shlex.join(["scripts/compare_presets.py", *sys.argv[1:]])
    how = {"jobs": options.jobs, "threads": options.threads}
    rows = compare(options.data.resolve(), variants, options.updates, options.out, title, command, **how)
    for row in rows:
        print(f"{row['title']:55} {row['valid_loss']:.3f} nats  {row['seconds_per_update']:.3f} s an update")
    print(f"Table: {options.out / 'table.md'}")


if __name__ == "__main__":
    main()
