"""Argument types shared by several command lines; invalid values are reported before the work begins."""

import argparse
import math
import os
from pathlib import Path


def positive(text: str) -> int:
    """Parse an integer above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def not_negative(text: str) -> int:
    """Parse an integer of at least zero."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return number


def positive_number(text: str) -> float:
    """Parse a finite number above zero."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above zero")
    return number


def fraction(text: str) -> float:
    """Parse a number above zero and at most one."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero and at most one")
    return number


def add_ema(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects the EMA weights of checkpoints."""
    parser.add_argument("--ema", action="store_true", help="use the checkpoint's EMA weights (--store-ema)")


def output_file(text: str) -> Path:
    """Parse the path of a file that can be written later."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    if not os.access(path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: {path.absolute().parent} is not a writable directory")
    return path
