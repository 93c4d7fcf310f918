"""Output of programs: warnings, progress bars that are also readable in a log file, and Markdown tables."""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 15
ROUNDING = 1e-12
"""Relative rounding error of a mean of float64 numbers: it is smaller, and what is measured differs by more."""


def configure_logging() -> None:
    """Log warnings only, one line each.

    One of fairseq's imports sets the root logger to DEBUG, so that all loggers print everything.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)


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


def progress_bars(label: str) -> Callable[[Sequence, str], Iterable]:
    """Return a function that iterates over some steps, given their name, with a progress bar."""
    return lambda steps, name: progress_bar(steps, desc=f"{label}, {name}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], is_markdown: bool = False) -> str:
    """Format a table of strings, without a trailing newline.

    Its cells are escaped, see :func:`escaped`, unless they are Markdown that this package wrote.
    """
    cells = [header, *rows]
    if not is_markdown:
        cells = [list(map(escaped, row)) for row in cells]
    cells.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


_IN_MARKDOWN = {"&(?=#?[A-Za-z0-9]+;)": "&amp;", "<(?=[A-Za-z/!?])": "&lt;", "[|]": "&#124;", "](?=[(])": "&#93;"}
"""Entities by the pattern that they replace, which begins an entity, a tag, a cell or the target of a link."""


def escaped(text: str) -> str:
    """Return a name or a message for Markdown, in which it makes no HTML, no link, and no cell or line of its own."""
    line = _one_line(text)
    for pattern, entity in _IN_MARKDOWN.items():
        line = re.sub(pattern, entity, line)
    return line


def code(text: str) -> str:
    """Return text as a span of code in Markdown, outside of a table."""
    line = _one_line(text)
    if "`" not in line:
        return f"`{line}`"
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}"


def _one_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def code_block(language: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a block of code in Markdown, which no line in it can end."""
    longest = max(map(_longest_run, lines), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def with_spread(mean: float, deviation: float, mean_form: str, deviation_form: str) -> str:
    """Format a mean with its standard deviation, which is 0 if it is only a rounding error of equal values.

    Args:
        mean_form, deviation_form: their formats, such as ``.4g``.
    """
    if deviation < ROUNDING * abs(mean):
        deviation = 0.0
    return f"{mean:{mean_form}} ± {deviation:{deviation_form}}"


def accuracy_cell(row: Mapping[str, float]) -> str:
    """Format an accuracy with its interval (``accuracy``, ``low`` and ``high``, all in [0, 1]) in per cent."""
    interval = f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    return f"{row['accuracy']:.1%} {interval}"
