"""A corpus: files of text and of records, read as chunks of lines with a blank line between records."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.text.records import Format, check_plain_text, format_of
from mae_lm_fairseq.text.text_files import (
    CHUNK_BYTES,
    SAMPLE_BLOCKS,
    Chunk,
    find_files,
    is_compressed,
    line_stretches,
    read_chunks,
    sample_block,
    sample_lines,
    text_bytes,
)
from mae_lm_fairseq.utils.errors import UserError

_LARGEST_SAMPLED_PIECE = 1 << 24
# Tokenizers make nothing of white space, control, format and private use characters, nor sentencepiece of U+2581, its
# own mark of a space, and U+FFFD.
_INVISIBLE_CATEGORIES = {"Zs", "Zl", "Zp", "Cc", "Cf", "Co"}
_INVISIBLE = "\u2581\ufffd"
_LETTER = re.compile(r"\w")


@dataclass(frozen=True)
class Reading:
    """How records are read.

    Attributes:
        text_field: name of the field with the text.
        skip_malformed: skip and count malformed records instead of raising an error.
    """

    text_field: str = "text"
    skip_malformed: bool = False


@dataclass(frozen=True)
class Piece:
    """Consecutive documents of a file.

    Attributes:
        path: path of the file.
        start, end: positions in the file (see ``records``; bytes in plain text); None for its end.
        size: estimated number of bytes of text.
    """

    path: Path
    start: int
    end: int | None
    size: int


def open_corpus(paths: Iterable[str | Path], reading: Reading) -> list[Path]:
    """Return the files of a corpus, after checking that files with records have the field, and others text.

    Raises:
        UserError: if a path is invalid, or a file lacks the field, is not text or cannot be read.
    """
    files = find_files(paths)
    for path in files:
        if kind := format_of(path):
            fields = kind.fields(path)
            if fields is not None and (count := fields.count(reading.text_field)) != 1:
                raise UserError(
                    f"{path}: has {count or 'no'} field {reading.text_field!r}; its fields are "
                    f"{', '.join(fields[:20])}; choose one with --text-field"
                )
        else:
            check_plain_text(path)
    return files


def divide(files: Iterable[Path], reading: Reading, size: int) -> list[Piece]:
    """Divide files into pieces of about ``size`` bytes; a compressed file and a CSV file are one piece.

    Raises:
        UserError: if a file cannot be read.
    """
    pieces = []
    for path in files:
        kind = format_of(path)
        if is_compressed(path):
            stretches = [(0, None, text_bytes(path))]
        elif kind is None:
            stretches = line_stretches(path, size)
        else:
            stretches = kind.stretches(path, reading.text_field, size)
        pieces += [Piece(path, *stretch) for stretch in stretches]
    return pieces


def read_piece(piece: Piece, reading: Reading, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Read a piece in chunks of about ``chunk_bytes``.

    Plain text is read as it is. Each record becomes its lines that are not blank, with a blank line between two records
    of a chunk.

    Raises:
        UserError: if the file cannot be read, or a record is malformed.
    """
    kind = format_of(piece.path)
    if kind is None:
        return read_chunks(piece.path, chunk_bytes, piece.start, piece.end)
    return _record_chunks(kind, piece, reading, chunk_bytes)


def _record_chunks(kind: Format, piece: Piece, reading: Reading, chunk_bytes: int) -> Iterator[Chunk]:
    documents, size, malformed = [], 0, 0
    for number, value in kind.records(piece.path, reading.text_field, piece.start, piece.end):
        try:
            document = _lines(value, reading.text_field)
        except ValueError as error:
            if not reading.skip_malformed:
                where = kind.name(piece.path, piece.start, number)
                advice = "correct it, or skip it (mae-lm prepare --skip-malformed)"
                raise UserError(f"{piece.path}: {where} {error}; {advice}") from None
            malformed += 1
            continue
        documents += [document] if document else []
        size += len(document)
        if size >= chunk_bytes:
            yield Chunk(piece.path, 1, b"\n".join(documents), piece.start, malformed, from_records=True)
            documents, size, malformed = [], 0, 0
    yield Chunk(piece.path, 1, b"\n".join(documents), piece.start, malformed, from_records=True)


def _lines(value: object, field: str) -> bytes:
    """Return the lines of a record. A blank one is dropped, because it ends a document in a data-bin."""
    if isinstance(value, ValueError):
        raise value
    if not isinstance(value, str):
        raise ValueError(f"has a {field!r} that is not text, but {value!r:.40}")
    lines = [line for line in value.replace("\r\n", "\n").split("\n") if _is_visible(line)]
    try:
        return "\n".join([*lines, ""]).encode() if lines else b""
    except UnicodeEncodeError as error:  # half of a surrogate pair: an escape in JSON, or a byte, see records
        raise ValueError(f"is not UTF-8, but has {error.object[error.start]!a}") from None


def _is_visible(line: str) -> bool:
    """Return whether a line has a character that tokenizers do not ignore. Nearly every such line has a letter."""
    return bool(_LETTER.search(line)) or any(
        unicodedata.category(character) not in _INVISIBLE_CATEGORIES and character not in _INVISIBLE
        for character in set(line)
    )


def sample_corpus(files: list[Path], reading: Reading, max_bytes: int) -> Iterator[str]:
    """Sample about ``max_bytes`` of lines, spread evenly over ``files``; all lines if they have no more than that.

    Raises:
        UserError: if a file cannot be read.
    """
    text_files = [path for path in files if format_of(path) is None]
    record_files, block = [path for path in files if format_of(path) is not None], sample_block(max_bytes)
    size = max(block, sum(map(text_bytes, record_files)) // SAMPLE_BLOCKS)
    pieces = divide(record_files, reading, min(size, _LARGEST_SAMPLED_PIECE))
    plain_bytes, record_bytes = sum(map(text_bytes, text_files)), sum(piece.size for piece in pieces)
    fraction = min(1, max_bytes / max(plain_bytes + record_bytes, 1))
    if text_files:
        yield from sample_lines(text_files, max_bytes - int(fraction * record_bytes))
    yield from _sample_pieces(pieces, reading, fraction, block, most=max_bytes)


def _sample_pieces(pieces: list[Piece], reading: Reading, fraction: float, block: int, *, most: int) -> Iterator[str]:
    """Yield a fraction of the lines: from all over a file or one of few pieces, else the first ones of a piece.

    What is kept is compared with the text up to there, not with that of the piece, of which a block can be all. It is
    at most ``most`` bytes, as the size of compressed text is an estimate.
    """
    few = len(pieces) < SAMPLE_BLOCKS // 2  # of a format that does not divide further
    kept = passed = 0
    for piece in pieces:
        spread, read = few or (piece.start, piece.end) == (0, None), 0
        for chunk in read_piece(piece, reading, block):
            if kept >= most:
                return
            if fraction == 1 or kept <= fraction * (passed + (read if spread else piece.size)):
                kept += len(chunk.data)
                yield from chunk.lines()
            elif not spread:
                break
            read += len(chunk.data)
        passed += read if spread else piece.size
