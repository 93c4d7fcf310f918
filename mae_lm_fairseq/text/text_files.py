"""Raw text on disk: which files there are, their lines in chunks, and a bounded sample of the lines.

A line ends with ``\\n`` or ``\\r\\n`` and with nothing else: form feeds and Unicode's own line separators stay inside
their line, as they do for sentencepiece's own reader.
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
# Text that a compressed byte is taken to stand for: the true size is not known before everything has been read.
# Rather too much than too little: that makes a sample smaller, this leaves the ends of the files out of it.
_TEXT_PER_COMPRESSED_BYTE = 5


@dataclass(frozen=True)
class Chunk:
    """Some whole lines of one file.

    Attributes:
        path: the file.
        first_line: the number of the first line in the file, counted from 1.
        data: the lines as they stand in the file, decompressed, without a byte order mark.
        position: how far the file on disk has been read, in bytes (compressed ones, if it is compressed).
    """

    path: Path
    first_line: int
    data: bytes
    position: int

    def line_count(self) -> int:
        """Lines in ``data``; the last one need not have an end."""
        return self.data.count(b"\n") + (self.data[-1:] not in (b"\n", b""))

    def not_utf8(self, error: UnicodeDecodeError) -> UserError:
        """What to tell the user when ``split_lines(self.data)`` raised ``error``."""
        number = self.first_line + self.data.count(b"\n", 0, error.start)
        return UserError(f"{self.path}: line {number} is not UTF-8 ({error.reason}); convert the file")


def split_lines(data: bytes) -> list[str]:
    """The lines in ``data`` without their ends; text behind the last end counts as a line, its absence does not.

    Raises:
        UnicodeDecodeError: ``data`` is not UTF-8.
    """
    lines = data.decode("utf-8").replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files named, and those in the directories named: recursively, sorted, without hidden ones.

    Raises:
        UserError: a path does not exist or is not a regular file, or a directory holds no file.
    """
    files = []
    for path in map(Path, paths):
        found = sorted(_files_below(path)) if path.is_dir() else [path]
        if not found:
            raise UserError(f"{path}: there are no files in this directory")
        for file in found:
            if not file.exists():
                raise UserError(f"{file}: no such file or directory")
            if not file.is_file():
                raise UserError(f"{file}: not a regular file; text is read more than once, so a pipe will not do")
        files += found
    return files


def _files_below(directory: Path) -> Iterator[Path]:
    def refuse(error: OSError):
        raise UserError(f"{error.filename}: {error.strerror}")

    seen = set()
    for root, directories, names in os.walk(directory, followlinks=True, onerror=refuse):
        real = os.path.realpath(root)
        if real in seen:  # a link to a directory above would be followed round and round
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        yield from (Path(root, name) for name in names if not name.startswith("."))


@contextmanager
def _open(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The text as a stream of bytes, and the file on disk below it, whose position tells the progress."""
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
        raise UserError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MB; is this text with line ends?")
    return line


def read_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The file in chunks of about ``chunk_bytes``, cut behind line ends.

    Raises:
        UserError: the file cannot be read or decompressed, or a line is too long to be text.
    """
    with _open(path) as (stream, raw):
        first_line = 1
        while data := stream.read(chunk_bytes):
            data += _read_line(stream, path)
            text = data.removeprefix(codecs.BOM_UTF8) if first_line == 1 else data
            yield Chunk(path, first_line, text, raw.tell())
            first_line += data.count(b"\n")


def sample_lines(files: list[Path], max_bytes: int, block: int = SAMPLE_BLOCK) -> Iterator[str]:
    """About ``max_bytes`` of lines, spread evenly over ``files``; all lines if they are not more than that.

    The files are taken as one long text, of which blocks at equal distances are read. In a compressed file all that
    lies before the last block has to be decompressed, and the sample can come out smaller.

    Raises:
        UserError: a file cannot be read or is not UTF-8.
    """
    sizes = [
        path.stat().st_size * (_TEXT_PER_COMPRESSED_BYTE if path.suffix in _DECOMPRESSORS else 1) for path in files
    ]
    for path, stretches in zip(files, _stretches(sizes, max_bytes, block), strict=True):
        with _open(path) as (stream, _):
            yield from _lines_starting_in(stream, stretches, path)


def _stretches(sizes: list[int], max_bytes: int, block: int) -> list[list[tuple[int, int]]]:
    """For each file the (offset, length) pairs of what to read of it."""
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
        # Never backwards, which a compressed stream would do by starting over: the last line may reach this far.
        if position < offset:
            # From one byte before, so that a line that starts exactly at the offset is kept.
            stream.seek(offset - 1)
            position = offset - 1 + len(_read_line(stream, path))
        while position < offset + length and (line := _read_line(stream, path)):
            try:
                yield from split_lines(line.removeprefix(codecs.BOM_UTF8) if position == 0 else line)
            except UnicodeDecodeError as error:
                byte = position + error.start
                raise UserError(f"{path}: not UTF-8 at byte {byte} ({error.reason}); convert the file") from None
            position += len(line)
