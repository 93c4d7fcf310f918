"""Raw text on disk: find files, read their lines in chunks, sample lines.

A line ends with ``\\n`` or ``\\r\\n`` only. Form feeds and Unicode's line separators are part of their line, as in
sentencepiece's own reader.
"""

import codecs
import gzip
import lzma
import os
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mae_lm_fairseq.utils.errors import UserError

CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 26
SAMPLE_BLOCK = 1 << 18

_DECOMPRESSORS = {".gz": gzip.open, ".xz": lzma.open}
# Assumed compression ratio; the true size is unknown until everything has been read. Too high a value makes a sample
# smaller, too low a value excludes the ends of the files from it.
_TEXT_PER_COMPRESSED_BYTE = 5


@dataclass(frozen=True)
class Chunk:
    """Some complete lines of one file.

    Attributes:
        path: path of the file.
        first_line: number of the first line in the file, counted from 1.
        data: the bytes of the lines, decompressed, without a byte order mark.
        position: number of bytes of the file on disk that have been read (compressed bytes for a compressed file).
    """

    path: Path
    first_line: int
    data: bytes
    position: int

    def line_count(self) -> int:
        """Return the number of lines in ``data``; the last one may lack a line end."""
        return self.data.count(b"\n") + (self.data[-1:] not in (b"\n", b""))

    def not_utf8(self, error: UnicodeDecodeError) -> UserError:
        """Return the error to raise after ``split_lines(self.data)`` has raised ``error``."""
        number = self.first_line + self.data.count(b"\n", 0, error.start)
        return UserError(f"{self.path}: line {number} is not UTF-8 ({error.reason}); convert the file")


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
    """Return the files named, and the files in the directories named: recursively, sorted, without hidden ones.

    Raises:
        UserError: if a path does not exist or is not a regular file, or a directory contains no file.
    """
    files = []
    for path in map(Path, paths):
        found = sorted(_files_below(path)) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: the directory has no files")
        for file in found:
            if not file.exists():
                raise UserError(f"{file}: no such file or directory")
            if not file.is_file():
                raise UserError(f"{file}: not a regular file; pipes do not work, as text is read more than once")
        files += found
    return files


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


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file as a stream of text bytes; also yield the file on disk, whose position shows the progress."""
    try:
        with open(path, "rb") as raw:
            yield _DECOMPRESSORS.get(path.suffix, lambda file: file)(raw), raw
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged or incomplete {path.suffix} file ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _read_line(stream: BinaryIO, path: Path) -> bytes:
    line = stream.readline(LONGEST_LINE)
    if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
        raise UserError(
            f"{path}: a line is longer than {LONGEST_LINE >> 20} MB; check that it is text with line breaks"
        )
    return line


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Read a file in chunks of about ``chunk_bytes`` that end at line ends.

    Raises:
        UserError: if the file cannot be read or decompressed, or a line is too long to be text.
    """
    with _open(path) as (stream, raw):
        first_line = 1
        while data := stream.read(chunk_bytes):
            data += _read_line(stream, path)
            text = data.removeprefix(codecs.BOM_UTF8) if first_line == 1 else data
            yield Chunk(path, first_line, text, raw.tell())
            first_line += data.count(b"\n")


def sample_lines(files: list[Path], max_bytes: int, block: int = SAMPLE_BLOCK) -> Iterator[str]:
    """Sample about ``max_bytes`` of lines, spread evenly over ``files``; all lines if they have no more than that.

    The files are treated as one long text, of which blocks at equal distances are read. A compressed file has to be
    decompressed up to its last block, and its sample can be smaller than requested.

    Raises:
        UserError: if a file cannot be read or is not UTF-8.
    """
    sizes = [
        path.stat().st_size * (_TEXT_PER_COMPRESSED_BYTE if path.suffix in _DECOMPRESSORS else 1) for path in files
    ]
    for path, stretches in zip(files, _stretches(sizes, max_bytes, block), strict=True):
        with _open(path) as (stream, _):
            yield from _lines_starting_in(stream, stretches, path)


def _stretches(sizes: list[int], max_bytes: int, block: int) -> list[list[tuple[int, int]]]:
    """Return the (offset, length) pairs to read of each file."""
    total = sum(sizes)
    if total <= max_bytes:
        return [[(0, size)] for size in sizes]
    count = max(1, max_bytes // block)
    starts = [total * i // count for i in range(count)]
    plan, begin = [], 0
    for size in sizes:
        inside = starts[bisect_left(starts, begin) : bisect_left(starts, begin + size)]
        plan.append([(start - begin, block) for start in inside])
        begin += size
    return plan


def _lines_starting_in(stream: BinaryIO, stretches: list[tuple[int, int]], path: Path) -> Iterator[str]:
    position = 0
    for offset, length in stretches:
        # Never seek backwards, where a compressed stream starts over: the last line may extend past this offset.
        if position < offset:
            # Start one byte before, so that a line that starts exactly at the offset is kept.
            stream.seek(offset - 1)
            position = offset - 1 + len(_read_line(stream, path))
        while position < offset + length and (line := _read_line(stream, path)):
            try:
                yield from split_lines(line.removeprefix(codecs.BOM_UTF8) if position == 0 else line)
            except UnicodeDecodeError as error:
                byte = position + error.start
                raise UserError(f"{path}: not UTF-8 at byte {byte} ({error.reason}); convert the file") from None
            position += len(line)
