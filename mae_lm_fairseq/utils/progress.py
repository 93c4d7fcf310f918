"""Progress bars that are also readable in a log file."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15


@contextlib.contextmanager
def step(number: int, steps: int, title: str) -> Iterator[None]:
    """Print the heading of one of several steps, and afterwards its duration."""
    print(f"\n[{number}/{steps}] {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"      took {time.monotonic() - started:.0f} s", flush=True)


class _Lines:
    """Stream that writes each redraw of a tqdm bar as a line of its own."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            self.stream.write(text.strip() + "\n")

    def flush(self) -> None:
        self.stream.flush()


def progress_bar(iterable: Iterable | None = None, stream: TextIO | None = None, **options) -> tqdm:
    """Return a tqdm bar on a stream (default: standard output).

    It prints a line every few seconds if the stream is not a terminal.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        return tqdm(iterable, file=stream, dynamic_ncols=True, miniters=0, **options)
    seconds = SECONDS_BETWEEN_LINES
    return tqdm(
        iterable, file=_Lines(stream), ncols=120, miniters=0, mininterval=seconds, maxinterval=seconds, **options
    )
