"""What several command lines ask for; mistakes are told before the work begins, not after it."""

import argparse
import math
import os
from pathlib import Path


def positive(text: str) -> int:
    """A whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def positive_number(text: str) -> float:
    """A number above zero."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above zero")
    return number


def output_file(text: str) -> Path:
    """A file that can be written when there is something to write."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    if not os.access(path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: {path.absolute().parent} is no directory that can be written to")
    return path
