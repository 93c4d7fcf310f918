"""Command-line options for measuring effective ranks."""

import argparse

from mae_lm_fairseq.analysis.rank_settings import RankSettings

STOCK = ("bert", "roberta", "mpnet")
"""Supported model types of Hugging Face."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`~mae_lm_fairseq.experiments.ranks.measure_models` reads."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="CHECKPOINT_OR_HF_DIR",
        help="checkpoints, pretrained or fine-tuned, bundles, or Hugging Face directories of type " + ", ".join(STOCK),
    )
    parser.add_argument("--text", required=True, metavar="FILE", help="UTF-8, plain, .gz or .xz, new to the models")
    parser.add_argument("--tokenizer", metavar="DATA_BIN", help="the checkpoints' data-bin; others bring a tokenizer")
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="what to call the models, in their order")
    options = {
        "tokens": (50_000, "N", "how much of the text is read"),
        "tokens_per_sample": (128, "N", "longest sample"),
        "mask_prob": (RankSettings.mask_prob, "P", "share of the tokens that is masked"),
        "threshold": (RankSettings.threshold, "T", "share of the sum of squares that the threshold rank holds"),
        "bootstrap": (RankSettings.bootstrap, "N", "resamples behind the intervals"),
        "seed": (RankSettings.seed, "N", "of masks and resamples"),
    }
    for name, (default, metavar, text) in options.items():
        option, text = f"--{name.replace('_', '-')}", f"{text} (default: %(default)s)"
        parser.add_argument(option, type=type(default), default=default, metavar=metavar, help=text)
    parser.add_argument("--centred", action="store_true", help="ranks around the mean; the paper's are around zero")
