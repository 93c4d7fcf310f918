"""Helpers shared by several test modules."""

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Root directory of the checkout."""


def words_of(*parts: object) -> list[str]:
    """Return the words of a command line; a part that begins with an option may hold several words."""
    words = []
    for part in map(str, parts):
        words += shlex.split(part) if part.startswith("--") else [part]
    return words
