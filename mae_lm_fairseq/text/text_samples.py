"""Sequences of the length that a model takes, made from lines of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TypeVar

from mae_lm_fairseq.text.records import check_plain_text
from mae_lm_fairseq.text.text_files import find_files, read_chunks

Item = TypeVar("Item")


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (plain or compressed), or of all files in a directory.

    An empty line follows each file.

    Raises:
        UserError: if the file does not exist or cannot be read.
    """
    for file in find_files([path]):
        for chunk in read_chunks(file):
            yield from chunk.lines()
        yield ""


def read_text(path: str | Path) -> Iterator[str]:
    """Yield the lines of plain text, as :func:`read_lines` does.

    Raises:
        UserError: if the file does not exist, has records or cannot be read.
    """
    for file in find_files([path]):
        check_plain_text(file)
    yield from read_lines(path)


def evenly_spaced(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return ``limit`` of the items, evenly spaced; all of them if there are no more, or it is None."""
    count = min(limit or len(items), len(items))
    return [items[index * len(items) // count] for index in range(count)]


def documents(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each document; blank lines separate documents."""
    for is_text, of_document in groupby(lines, lambda line: bool(line.strip())):
        if is_text:
            yield list(of_document)


def text_samples(
    lines: Iterable[str],
    encode: Callable[[str], list[int]],
    length: int,
    opening: list[int],
    closing: list[int],
    limit: int,
) -> list[list[int]]:
    """Group the lines of each document into sequences that are as long as possible. Longer lines are split.

    Args:
        lines: lines of documents, with blank lines between documents.
        encode: returns the ids of a line.
        length: maximum number of tokens of a sequence, ``opening`` and ``closing`` included.
        opening, closing: ids at both ends of every sequence.
        limit: number of tokens to collect; the sequence that reaches it is the last, and is complete.
    """
    room = length - len(opening) - len(closing)

    def parts() -> Iterator[list[int]]:
        for line in chain(lines, [""]):
            ids = encode(line) if line.strip() else []
            for start in range(0, max(len(ids), 1), room):
                yield ids[start : start + room]

    samples, count, current = [], 0, []
    for part in parts():
        is_full = not part or len(current) + len(part) > room
        if current and is_full:
            sample = [*opening, *current, *closing]
            samples.append(sample)
            count += len(sample)
            if count >= limit:
                break
            current = []
        current += part
    return samples
