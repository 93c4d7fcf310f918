"""Progress bars that are also readable in a log file."""

import sys
from collections.abc import Iterable
from typing import TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15


class _Lines:
    """Stream that writes each redraw of a tqdm bar as a line of its own."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            self.stream.write(text.strip() + "\n")

    def flush(self) -> None:
        self.stream.flush()


def progress_bar(iterable: Iterable | None = None, **options) -> tqdm:
    """Return a tqdm bar on standard output, which prints a line every few seconds if that is not a terminal."""
    if sys.stdout.isatty():
        return tqdm(iterable, file=sys.stdout, dynamic_ncols=True, miniters=0, **options)
    seconds = SECONDS_BETWEEN_LINES
    return tqdm(
        iterable, file=_Lines(sys.stdout), ncols=120, miniters=0, mininterval=seconds, maxinterval=seconds, **options
    )
