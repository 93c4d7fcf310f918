"""Directories that are named by what they depend on, are made at once, and are found again.

The name ends with a hash of what the content depends on. So a change makes a new directory beside the old one, and what
is unchanged finds its own.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mae_lm_fairseq.utils.directories import temporary_directory
from mae_lm_fairseq.utils.writing import finish_directory, remove, temporary_name

_DIGITS = 12
Content = TypeVar("Content")


def keyed(name: str, of: str) -> str:
    """Return the name ``NAME-KEY``, where ``KEY`` is a hash of the text ``of``."""
    return f"{name}-{hashlib.sha256(of.encode()).hexdigest()[:_DIGITS]}"


def find_or_make(
    path: Path, function: Callable[[Path], Content], find: Callable[[Path], Content | None]
) -> tuple[Content, bool]:
    """Return the content of a directory, and whether it was there; make the directory if it is missing or damaged.

    The directory gets its name when it is complete. Several processes may make the same one.

    Args:
        function: writes into an empty directory, and returns the content.
        find: returns the content of a directory; None if there is none, or if it is damaged.
    """
    content = find(path)
    if content is not None:
        return content, True
    with temporary_directory(temporary_name(path)) as new:
        content = function(new)
        finish_directory(new)
        if find(path) is None:
            remove(path)
        try:
            os.rename(new, path)
        except OSError:
            if not path.exists():
                raise
    return content, False
