"""Measure and plot the effective rank of trained models' hidden states, layer by layer.

For each model: real tokens in clean text, real tokens in text with [MASK], and [MASK] itself; for models that keep
[MASK] out of their encoder, both as trained and with [MASK] forced into the encoder. Writes ranks.json, ranks.csv,
ranks.png, gaps.png and outside.png.

Example:
    mae-lm rank checkpoints/mae_lm/checkpoint_last.pt --text valid.txt --tokenizer data-bin --out ranks
"""

import argparse
from pathlib import Path

from mae_lm_fairseq.measures.rank_options import add_options
from mae_lm_fairseq.utils.files import make_output_directory, write_json
from mae_lm_fairseq.utils.logging import configure_logging
from mae_lm_fairseq.utils.versions import versions


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR", help="output directory")
    add_options(parser)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    arguments = parser().parse_args(argv)
    configure_logging()
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.measures.rank_figures import plot_gaps, plot_outside, plot_ranks
    from mae_lm_fairseq.measures.ranks import measure_models, write_csv

    check_matplotlib()
    out = Path(arguments.out)
    make_output_directory(out)
    models = measure_models(arguments)
    write_json(out / "ranks.json", {"versions": versions(), "models": models})
    write_csv(out / "ranks.csv", models)
    plot_ranks(out / "ranks.png", models)
    plot_gaps(out / "gaps.png", models)
    plot_outside(out / "outside.png", models)
    print(f"{out}: ranks.json, ranks.csv, ranks.png, gaps.png, outside.png")
