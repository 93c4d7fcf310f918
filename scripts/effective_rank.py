#!/usr/bin/env python3
"""Measure how many directions the representations of trained models use, layer by layer, and draw it.

For each model: real tokens in clean text, real tokens in text with [MASK], and [MASK] itself; for models that leave
[MASK] out of their encoder, both as trained and with [MASK] forced into the encoder. Leaves ranks.json, ranks.csv,
ranks.png, gaps.png and outside.png.
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.experiments.rank_options import add_options
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import quieten


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="where the results go")
    add_options(parser)
    return parser


def main():
    """Measure, write and draw."""
    arguments = parser().parse_args()
    quieten()
    from mae_lm_fairseq.analysis.figures import check_matplotlib
    from mae_lm_fairseq.analysis.rank_figures import plot_gaps, plot_outside, plot_ranks
    from mae_lm_fairseq.experiments.ranks import measure_models, write_csv
    from mae_lm_fairseq.utils.versions import versions

    check_matplotlib()
    out = Path(arguments.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"--out {out}: {problem.strerror}") from None
    models = measure_models(arguments)
    write_json(out / "ranks.json", {"versions": versions(), "models": models})
    write_csv(out / "ranks.csv", models)
    plot_ranks(out / "ranks.png", models)
    plot_gaps(out / "gaps.png", models)
    plot_outside(out / "outside.png", models)
    print(f"{out}: ranks.json, ranks.csv, ranks.png, gaps.png, outside.png")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
