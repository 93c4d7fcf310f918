"""Command-line options for measuring effective ranks."""

import argparse

from mae_lm_fairseq.measures.reader_options import add_models
from mae_lm_fairseq.statistics.rank_settings import RankSettings

STOCK = ("bert", "roberta", "mpnet")
"""Supported model types of Hugging Face."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`~mae_lm_fairseq.measures.ranks.measure_models` reads."""
    add_models(parser, f"a Hugging Face model of type {', '.join(STOCK)}", "--tokenizer")
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="UTF-8 text that is new to the models, plain or compressed"
    )
    options = {
        "tokens": (50_000, "N", "number of tokens to read"),
        "tokens_per_sample": (128, "N", "maximum sequence length in tokens"),
        "mask_prob": (RankSettings.mask_prob, "P", "fraction of tokens to mask"),
        "threshold": (RankSettings.threshold, "T", "fraction of the sum of squares that defines the threshold rank"),
        "bootstrap": (RankSettings.bootstrap, "N", "number of bootstrap resamples for the intervals"),
        "seed": (RankSettings.seed, "N", "seed of masks and resamples"),
    }
    for name, (default, metavar, text) in options.items():
        option, text = f"--{name.replace('_', '-')}", f"{text} (default: %(default)s)"
        parser.add_argument(option, type=type(default), default=default, metavar=metavar, help=text)
    parser.add_argument(
        "--centred", action="store_true", help="measure ranks around the mean instead of zero, unlike the paper"
    )
