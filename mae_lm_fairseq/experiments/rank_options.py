"""Command-line options for measuring effective ranks."""

import argparse

from mae_lm_fairseq.analysis.rank_settings import RankSettings
from mae_lm_fairseq.utils.arguments import add_ema

STOCK = ("bert", "roberta", "mpnet")
"""Supported model types of Hugging Face."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`~mae_lm_fairseq.experiments.ranks.measure_models` reads."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="CHECKPOINT_OR_HF_DIR",
        help="checkpoints (pretrained or fine-tuned), bundles, or Hugging Face directories of type " + ", ".join(STOCK),
    )
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="UTF-8 text that is new to the models (plain, .gz or .xz)"
    )
    parser.add_argument(
        "--tokenizer", metavar="DATA_BIN", help="data-bin of checkpoints; other models contain a tokenizer"
    )
    add_ema(parser)
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="names of the models, in the same order")
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
