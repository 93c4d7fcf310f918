"""Raw text on disk: find files, read their lines in chunks, sample lines.

A line ends with ``\\n`` or ``\\r\\n`` only. Form feeds and Unicode's line separators are part of their line, as in
sentencepiece's own reader.
"""

import codecs
import glob
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mae_lm_fairseq.text.decompression import SUFFIXES, decompressed
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import refuse_pointer

CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 25
SAMPLE_BLOCKS, LARGEST_BLOCK = 64, 1 << 18
"""Minimum number of blocks of a sample, and their maximum size in bytes."""

# Assumed compression ratio; the true size is unknown until everything has been read. Too high a value makes a sample
# smaller, too low a value excludes the ends of the files from it.
TEXT_PER_COMPRESSED_BYTE = 5

_CHECKED_BYTES = 1 << 13


class Stretch(NamedTuple):
    """Consecutive lines or records of a file, which can be read on their own.

    Attributes:
        path: path of the file.
        start, end: positions in the file (see ``records``; bytes in plain text); None for its end.
        size: estimated number of bytes of text.
    """

    path: Path
    start: int
    end: int | None
    size: int


@dataclass(frozen=True)
class Chunk:
    """Some complete lines of one file.

    Attributes:
        path: path of the file.
        first_line: number of the first line in plain text, counted from 1 at ``start``.
        data: the bytes of the lines, decompressed, without a byte order mark.
        start: where reading started in the file.
        malformed: number of malformed records that were skipped.
        from_records: whether the lines are those of records, and so begin a document.
    """

    path: Path
    first_line: int
    data: bytes
    start: int = 0
    malformed: int = 0
    from_records: bool = False

    @property
    def begins_document(self) -> bool:
        """Whether the chunk has lines that do not continue the document of the chunk before it."""
        begins_file = self.start == 0 and self.first_line == 1
        return bool(self.data) and (self.from_records or begins_file)

    def lines(self) -> list[str]:
        """Return the lines; see :func:`split_lines`.

        Raises:
            UserError: if ``data`` is not UTF-8.
        """
        try:
            return split_lines(self.data)
        except UnicodeDecodeError as error:
            number = self.first_line + self.data.count(b"\n", 0, error.start)
            number += count_lines(self.path, self.start)
            raise UserError(f"{self.path}: line {number} is not UTF-8 ({error.reason}); convert the file") from None


def split_lines(data: bytes) -> list[str]:
    """Split ``data`` into lines without line ends. Text after the last line end is a line; an empty rest is not.

    Raises:
        UnicodeDecodeError: if ``data`` is not UTF-8.
    """
    lines = data.decode("utf-8").replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files named, those that a glob matches, and those in directories: recursively, without hidden ones.

    Globs and directories are sorted.

    Raises:
        UserError: if a path does not exist or is not a regular file, a glob matches nothing, or a directory contains no
            file.
    """
    files = []
    for path in chain.from_iterable(map(expand, paths)):
        if not path.is_dir():
            files.append(path)
            continue
        below = sorted(_files_below(path))
        if not below:
            raise UserError(f"{path}: the directory has no files")
        files += below
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file, or not a regular one; text is read more than once")
    return files


def expand(path: str | Path) -> list[Path]:
    """Return the paths that a glob matches, without those below a directory that it matches; or the path itself.

    Raises:
        UserError: if a glob matches nothing.
    """
    if not str(path):
        raise UserError("the name of a file or directory with text is empty")
    if os.path.exists(path) or not glob.has_magic(str(path)):
        return [Path(path)]
    matches = list(map(Path, sorted(glob.glob(str(path), recursive=True))))
    if not matches:
        raise UserError(f"{path}: no file matches; check the pattern")
    directories = {match for match in matches if match.is_dir()}
    return [match for match in matches if directories.isdisjoint(match.parents)]


def _files_below(directory: Path) -> Iterator[Path]:
    def refuse(error: OSError):
        raise UserError(f"{error.filename}: {error.strerror}")

    seen = set()
    for root, directories, names in os.walk(directory, followlinks=True, onerror=refuse):
        real = os.path.realpath(root)
        if real in seen:  # a link to a parent directory would be followed forever
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        yield from (Path(root, name) for name in names if not name.startswith("."))


def is_compressed(path: Path) -> bool:
    """Return whether the name of a file says that it is compressed."""
    return path.suffix.lower() in SUFFIXES


def text_bytes(path: Path) -> int:
    """Return the size of a file, an estimate if it is compressed."""
    return path.stat().st_size * (TEXT_PER_COMPRESSED_BYTE if is_compressed(path) else 1)


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a file as a stream of text bytes.

    Raises:
        UserError: if it cannot be read or decompressed, also inside the ``with`` block, or begins like a binary file.
    """
    try:
        with open(path, "rb") as raw:
            stream = decompressed(raw, path.suffix.lower()) if is_compressed(path) else raw
            beginning = stream.peek(_CHECKED_BYTES)[:_CHECKED_BYTES]
            refuse_pointer(beginning, path)
            if 8 * beginning.count(0) > len(beginning):  # text has hardly any
                kinds = "archives, other binary files and UTF-16"
                raise UserError(f"{path}: has NUL bytes, as {kinds} have; unpack or convert it")
            yield stream
    except EOFError as error:
        raise UserError(f"{path}: damaged or incomplete {path.suffix} file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def count_lines(path: Path, end: int) -> int:
    """Return the number of line ends in the first ``end`` bytes of a file that is not compressed."""
    count = 0
    with open(path, "rb") as file:
        while end > 0 and (data := file.read(min(end, CHUNK_BYTES))):
            count += data.count(b"\n")
            end -= len(data)
    return count


def _read_line(stream: BinaryIO, path: Path) -> bytes:
    line = stream.readline(LONGEST_LINE)
    if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
        raise UserError(
            f"{path}: a line is longer than {LONGEST_LINE >> 20} MB; check that it is text with line breaks"
        )
    return line


def _beginning(data: bytes, path: Path) -> bytes:
    """Return the first lines of a file without a byte order mark, after a check that they have line ends."""
    if b"\n" not in data and b"\r" in data[:-1]:  # the file would be one line
        raise UserError(f"{path}: its lines end with CR alone, as on old Macs; convert it: tr '\\r' '\\n'")
    return data.removeprefix(codecs.BOM_UTF8)


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES, start: int = 0, end: int | None = None) -> Iterator[Chunk]:
    """Read a file in chunks of about ``chunk_bytes`` that end at line ends.

    Args:
        start, end: the bytes to read, which begin and end at line ends; None for the end of the file. A compressed file
            is read completely.

    Raises:
        UserError: if the file cannot be read or decompressed, a line is too long to be text, or lines end with CR.
    """
    with open_text(path) as stream:
        if start:
            stream.seek(start)
        first_line = 1
        left = float("inf") if end is None else end - start
        while left > 0 and (data := stream.read(min(chunk_bytes, left))):
            if len(data) < left:
                data += _read_line(stream, path)
            begins_file = start == 0 and first_line == 1
            yield Chunk(path, first_line, _beginning(data, path) if begins_file else data, start)
            first_line += data.count(b"\n")
            left -= len(data)


def line_stretches(path: Path, size: int) -> list[Stretch]:
    """Divide a file that is not compressed at line ends into stretches of about ``size`` bytes.

    Raises:
        UserError: if the file cannot be read, or a line is too long to be text.
    """
    total = path.stat().st_size
    cuts = [0]
    with open_text(path) as stream:
        while cuts[-1] < total:
            # Start one byte before, so that a line that starts exactly at the offset counts.
            cut = min(cuts[-1] + size, total)
            stream.seek(cut - 1)
            _read_line(stream, path)
            cuts.append(stream.tell())
    return [Stretch(path, start, end, end - start) for start, end in pairwise(cuts)]


def sample_block(max_bytes: int) -> int:
    """Return the size of the blocks that a sample is made of, so that even a small sample is spread over the text."""
    return max(1, min(LARGEST_BLOCK, max_bytes // SAMPLE_BLOCKS))


def sample_lines(files: list[Path], max_bytes: int, block: int | None = None) -> Iterator[str]:
    """Sample about ``max_bytes`` of lines, spread evenly over ``files``; all lines if they have no more than that.

    The files are treated as one long text, of which blocks at equal distances are read; the default of their size is
    :func:`sample_block`. A compressed file has to be decompressed up to its last block, and its sample can be smaller
    than requested.

    Raises:
        UserError: if a file cannot be read or is not UTF-8.
    """
    sizes = list(map(text_bytes, files))
    plan = _sampled_ranges(sizes, max_bytes, block or sample_block(max_bytes))
    for path, ranges in zip(files, plan, strict=True):
        if ranges:
            with open_text(path) as stream:
                yield from _lines_starting_in(stream, ranges, path)


def _sampled_ranges(sizes: list[int], max_bytes: int, block: int) -> list[list[tuple[int, int]]]:
    """Return the ranges of bytes to read of each file; a block can extend over several files.

    If all files together are small enough, each has its part of ``max_bytes``, as its size may be an estimate.
    """
    total = sum(sizes)
    if total <= max_bytes:
        return [[(0, max_bytes * size // max(total, 1))] for size in sizes]
    count = max(1, max_bytes // block)
    starts = [total * i // count for i in range(count)]
    plan = []
    begin = 0
    for size in sizes:
        first = bisect_right(starts, begin - block)
        last = bisect_left(starts, begin + size)
        offsets = [start - begin for start in starts[first:last]]
        plan.append([(max(0, offset), min(size, offset + block)) for offset in offsets])
        begin += size
    return plan


def _lines_starting_in(stream: BinaryIO, ranges: list[tuple[int, int]], path: Path) -> Iterator[str]:
    position = 0
    for start, end in ranges:
        if position < start:  # else the last line extended past this offset
            # Start one byte before, so that a line that starts exactly at the offset is kept.
            _skip(stream, start - 1 - position)
            position = start - 1 + len(_read_line(stream, path))
        while position < end and (line := _read_line(stream, path)):
            try:
                yield from split_lines(_beginning(line, path) if position == 0 else line)
            except UnicodeDecodeError as error:
                byte = position + error.start
                raise UserError(f"{path}: not UTF-8 at byte {byte} ({error.reason}); convert the file") from None
            position += len(line)


def _skip(stream: BinaryIO, count: int):
    if stream.seekable():
        stream.seek(count, os.SEEK_CUR)
        return
    while count > 0 and (data := stream.read(min(count, CHUNK_BYTES))):
        count -= len(data)
