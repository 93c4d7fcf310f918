"""Texts of the length that a model takes, from lines of text."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from mae_lm_fairseq.text.text_files import find_files, read_chunks, split_lines


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file of UTF-8, plain, .gz or .xz, or of those in a directory; an empty one between two files.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    for file in find_files([path]):
        for chunk in read_chunks(file):
            try:
                yield from split_lines(chunk.data)
            except UnicodeDecodeError as error:
                raise chunk.not_utf8(error) from None
        yield ""


def text_samples(
    lines: Iterable[str],
    encode: Callable[[str], list[int]],
    length: int,
    opening: list[int],
    closing: list[int],
    limit: int,
) -> list[list[int]]:
    """Texts of whole lines of one document, as long as fits; a line that is longer makes several.

    Args:
        lines: of documents with blank lines between them.
        encode: gives the ids of a line.
        length: the most tokens of a text, ``opening`` and ``closing`` included.
        opening, closing: ids at both ends of every text.
        limit: how many tokens there are to be; the text that reaches it is the last, and whole.
    """
    room, samples, count, current = length - len(opening) - len(closing), [], 0, []

    def parts() -> Iterator[list[int]]:
        for line in chain(lines, [""]):
            ids = encode(line) if line.strip() else []
            yield from (ids[start : start + room] for start in range(0, max(len(ids), 1), room))

    for part in parts():
        if current and (not part or len(current) + len(part) > room):
            samples.append([*opening, *current, *closing])
            count, current = count + len(samples[-1]), []
            if count >= limit:
                break
        current += part
    return samples
