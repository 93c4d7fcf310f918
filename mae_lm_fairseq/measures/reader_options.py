"""Command line options that name trained models."""

import argparse
from pathlib import Path

from mae_lm_fairseq.utils.arguments import add_ema


def add_models(parser: argparse.ArgumentParser, hugging_face: str, data_bin: str = "--data-bin") -> None:
    """Add the options that :func:`~mae_lm_fairseq.measures.readers.checked_models` uses.

    Args:
        parser: the command line.
        hugging_face: the Hugging Face models that the command can read.
        data_bin: name of the option for the data-bin of checkpoints.
    """
    parser.add_argument(
        "models",
        nargs="+",
        type=Path,
        metavar="MODEL",
        help=f"a bundle, a checkpoint (with {data_bin}), or the directory of {hugging_face} with its tokenizer",
    )
    parser.add_argument(
        data_bin, dest="data_bin", type=Path, metavar="DIR", help="data-bin with the checkpoints' tokenizer"
    )
    add_ema(parser)
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="names of the models, in their order")
