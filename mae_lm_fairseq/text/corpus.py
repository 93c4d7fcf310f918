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
    Stretch,
    find_files,
    is_compressed,
    line_stretches,
    read_chunks,
    sample_block,
    sample_lines,
    text_bytes,
)
from mae_lm_fairseq.utils.errors import UserError

_LARGEST_SAMPLED_STRETCH = 1 << 24
# Tokenizers make nothing of white space, control, format and private use characters, nor sentencepiece of U+2581, its
# own mark of a space, and U+FFFD.
_INVISIBLE_CATEGORIES = {"Zs", "Zl", "Zp", "Cc", "Cf", "Co"}
_INVISIBLE = "\u2581\ufffd"
_LETTER = re.compile(r"\w")


@dataclass(frozen=True)
class RecordOptions:
    """How records are read.

    Attributes:
        text_field: name of the field with the text.
        skip_malformed: skip and count malformed records instead of raising an error.
    """

    text_field: str = "text"
    skip_malformed: bool = False


def open_corpus(paths: Iterable[str | Path], record_options: RecordOptions) -> list[Path]:
    """Return the files of a corpus, after checking that files with records have the field, and others text.

    Raises:
        UserError: if a path is invalid, or a file lacks the field, is not text or cannot be read.
    """
    files = find_files(paths)
    for path in files:
        kind = format_of(path)
        if kind is None:
            check_plain_text(path)
            continue
        fields = kind.fields(path)
        if fields is not None:
            _check_fields(path, fields, record_options.text_field)
    return files


def _check_fields(path: Path, fields: list[str], text_field: str) -> None:
    """Raise a UserError unless one field has the name of the field with the text."""
    count = fields.count(text_field)
    if count != 1:
        known = ", ".join(fields[:20])
        raise UserError(
            f"{path}: has {count or 'no'} field {text_field!r}; its fields are {known}; choose one with --text-field"
        )


def divide(files: Iterable[Path], size: int) -> list[Stretch]:
    """Divide files into stretches of about ``size`` bytes; a compressed file and a CSV file are one stretch.

    Raises:
        UserError: if a file cannot be read.
    """
    stretches = []
    for path in files:
        kind = format_of(path)
        if is_compressed(path):
            stretches.append(Stretch(path, 0, None, text_bytes(path)))
        elif kind is None:
            stretches += line_stretches(path, size)
        else:
            stretches += kind.stretches(path, size)
    return stretches


def read_stretch(stretch: Stretch, record_options: RecordOptions, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Read a stretch in chunks of about ``chunk_bytes``.

    Plain text is read as it is. Each record becomes its lines that are not blank, with a blank line between two records
    of a chunk.

    Raises:
        UserError: if the file cannot be read, or a record is malformed.
    """
    kind = format_of(stretch.path)
    if kind is None:
        return read_chunks(stretch.path, chunk_bytes, stretch.start, stretch.end)
    return _record_chunks(kind, stretch, record_options, chunk_bytes)


def _record_chunks(kind: Format, stretch: Stretch, record_options: RecordOptions, chunk_bytes: int) -> Iterator[Chunk]:
    def chunk() -> Chunk:
        text = b"\n".join(documents)
        return Chunk(stretch.path, 1, text, stretch.start, malformed, from_records=True)

    documents, size, malformed = [], 0, 0
    for number, value in kind.records(stretch, record_options.text_field):
        try:
            document = _lines(value, record_options.text_field)
        except ValueError as error:
            if not record_options.skip_malformed:
                where = f"{stretch.path}: {kind.name(stretch, number)}"
                advice = "correct it, or skip it (mae-lm prepare --skip-malformed)"
                raise UserError(f"{where} {error}; {advice}") from None
            malformed += 1
            continue
        if document:
            documents.append(document)
        size += len(document)
        if size >= chunk_bytes:
            yield chunk()
            documents, size, malformed = [], 0, 0
    yield chunk()


def _lines(value: object, field: str) -> bytes:
    """Return the lines of a record. A blank one is dropped, because it ends a document in a data-bin."""
    if isinstance(value, ValueError):
        raise value
    if not isinstance(value, str):
        raise ValueError(f"has a {field!r} that is not text, but {value!r:.40}")
    lines = value.replace("\r\n", "\n").split("\n")
    try:
        return "".join(f"{line}\n" for line in lines if _is_visible(line)).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair: an escape in JSON, or a byte, see records
        raise ValueError(f"is not UTF-8, but has {error.object[error.start]!a}") from None


def _is_visible(line: str) -> bool:
    """Return whether a line has a character that tokenizers do not ignore. Nearly every such line has a letter."""
    if _LETTER.search(line):
        return True
    characters = set(line).difference(_INVISIBLE)
    return not _INVISIBLE_CATEGORIES.issuperset(map(unicodedata.category, characters))


def sample_corpus(files: list[Path], record_options: RecordOptions, max_bytes: int) -> Iterator[str]:
    """Sample about ``max_bytes`` of lines, spread evenly over ``files``; all lines if they have no more than that.

    Raises:
        UserError: if a file cannot be read.
    """
    text_files = [path for path in files if format_of(path) is None]
    record_files = [path for path in files if format_of(path) is not None]
    block = sample_block(max_bytes)
    size = max(block, sum(map(text_bytes, record_files)) // SAMPLE_BLOCKS)
    stretches = divide(record_files, min(size, _LARGEST_SAMPLED_STRETCH))

    plain_bytes = sum(map(text_bytes, text_files))
    record_bytes = sum(stretch.size for stretch in stretches)
    fraction = min(1, max_bytes / max(plain_bytes + record_bytes, 1))
    if text_files:
        yield from sample_lines(text_files, max_bytes - int(fraction * record_bytes))
    yield from _sample_stretches(stretches, record_options, fraction, block, most=max_bytes)


def _sample_stretches(
    stretches: list[Stretch], record_options: RecordOptions, fraction: float, block: int, *, most: int
) -> Iterator[str]:
    """Yield a fraction of the lines: from all over a file or one of few stretches, else the first ones of a stretch.

    What is kept is compared with the text up to there, not with that of the stretch, of which a block can be all. It
    is at most ``most`` bytes, as the size of compressed text is an estimate.
    """
    are_few = len(stretches) < SAMPLE_BLOCKS // 2  # of a format that does not divide further
    kept = passed = 0
    for stretch in stretches:
        is_spread = are_few or (stretch.start, stretch.end) == (0, None)
        read = 0
        for chunk in read_stretch(stretch, record_options, block):
            if kept >= most:
                return
            before = passed + (read if is_spread else stretch.size)
            if fraction == 1 or kept <= fraction * before:
                kept += len(chunk.data)
                yield from chunk.lines()
            elif not is_spread:
                break
            read += len(chunk.data)
        passed += read if is_spread else stretch.size
