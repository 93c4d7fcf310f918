"""Corpus formats with records: JSON lines, CSV, TSV and Parquet. A record is a document, in one of its fields.

A position in a file, where reading can start, is a byte in JSON lines and a row group in Parquet. CSV is read from the
beginning, because a quoted field may contain line breaks.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from mae_lm_fairseq.text.text_files import (
    LONGEST_LINE,
    Stretch,
    count_lines,
    is_compressed,
    line_stretches,
    open_text,
    read_chunks,
)
from mae_lm_fairseq.utils.errors import UserError

_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 28
_LARGEST_TABLE, _LARGEST_RATIO = 1 << 29, 64
"""Memory of a table of Parquet from which on it must not be larger than its file by this factor.

A file of kilobytes can repeat a text any number of times.
"""
_OBJECT_BYTES, _ROW_BYTES = 64, 250
"""About the memory of a Python object, without its text, and of the dictionary of a row."""


class Format(Protocol):
    """A file format."""

    def fields(self, path: Path) -> list[str] | None:
        """Return the names of the fields, or those of the first record; None if there is no valid first record."""

    def stretches(self, path: Path, size: int) -> list[Stretch]:
        """Divide a file that is not compressed into stretches of about ``size`` bytes."""

    def records(self, stretch: Stretch, field: str) -> Iterator[tuple[int, object]]:
        """Yield the records of a stretch.

        Each is the number of its (first) line or row, counted from 1 at the start of the stretch, and the value of its
        field, which should be text; a ValueError for a malformed record.
        """

    def name(self, stretch: Stretch, number: int) -> str:
        """Return how error messages name a record, given its number in a stretch."""


def format_of(path: Path) -> Format | None:
    """Return the format that the suffix of a file names; None for plain text."""
    plain = path.with_suffix("") if is_compressed(path) else path
    return _FORMATS.get(plain.suffix.lower())


def check_plain_text(path: Path) -> None:
    """Check that a file has no records, for commands that only read plain text.

    Raises:
        UserError: if its suffix names a format with records, it has JSON, or it cannot be read.
    """
    if format_of(path) is not None:
        raise UserError(
            f"{path}: has records, and only plain text is read here; write their texts to a .txt file, separated by "
            "blank lines"
        )
    check_no_json(path)


def check_no_json(path: Path) -> None:
    """Raise a UserError if a file is no text, or its first line is a JSON object, a list of them, or begins one."""
    with open_text(path) as stream:
        line = stream.readline(LONGEST_LINE).strip()
    content = {}
    if line not in (b"{", b"["):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            return
    records = content if isinstance(content, list) else [content]
    if any(isinstance(record, dict) for record in records):
        raise UserError(f"{path}: is JSON, whatever its name says; rename it to end in .jsonl, or in .json")


class JsonLines:
    """A JSON object on each line."""

    def fields(self, path: Path) -> list[str] | None:
        lines = _json_lines(path, 0, None)
        _, first = next(lines, (0, b""))
        try:
            return list(_json_object(first))
        except ValueError:
            return None

    def stretches(self, path: Path, size: int) -> list[Stretch]:
        return line_stretches(path, size)

    def records(self, stretch: Stretch, field: str) -> Iterator[tuple[int, object]]:
        for number, line in _json_lines(stretch.path, stretch.start, stretch.end):
            try:
                value = _json_object(line).get(field, ValueError(f"has no field {field!r}"))
            except ValueError as error:
                value = error
            yield number, value

    def name(self, stretch: Stretch, number: int) -> str:
        return f"line {number + count_lines(stretch.path, stretch.start)}"


def _json_lines(path: Path, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    for chunk in read_chunks(path, start=start, end=end):
        for number, line in enumerate(chunk.data.split(b"\n"), chunk.first_line):
            if line.strip():
                yield number, line


def _json_object(line: bytes) -> dict[str, object]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    return content


class DelimitedText:
    """A CSV or TSV file with a header line, as Python's ``csv`` module and pandas write it."""

    def __init__(self, delimiter: str):
        self._delimiter = delimiter

    def fields(self, path: Path) -> list[str] | None:
        with open_text(path) as stream:
            rows = csv_rows(stream, path, self._delimiter)
            _, header = next(rows, (0, None))
        return header

    def stretches(self, path: Path, size: int) -> list[Stretch]:
        return [Stretch(path, 0, None, path.stat().st_size)]

    def records(self, stretch: Stretch, field: str) -> Iterator[tuple[int, object]]:
        with open_text(stretch.path) as stream:
            rows = csv_rows(stream, stretch.path, self._delimiter)
            _, header = next(rows, (0, [field]))
            column = header.index(field)
            for number, row in rows:
                if len(row) == len(header):
                    yield number, row[column]
                else:
                    yield number, ValueError(f"has {len(row)} fields, and the header {len(header)}")

    def name(self, stretch: Stretch, number: int) -> str:
        return f"line {number}"


def csv_rows(stream: BinaryIO, path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, cells) of each row that is not empty, or raise a UserError.

    Bytes that are not UTF-8 become lone surrogates.
    """
    csv.field_size_limit(LONGEST_LINE)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    lines = _RowLines(text, path)
    # Otherwise a quote that is not closed makes one field of the rest of the file.
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    end = 0
    try:
        for row in rows:
            lines.begin_row()
            if row:
                yield end + 1, row
            end = rows.line_num
    except csv.Error as error:
        raise UserError(f"{path}: line {end + 1} is not CSV ({error}); check the quotes") from None


class _RowLines:
    """The lines of a table, for ``csv.reader``, which would keep a row of any length in memory."""

    def __init__(self, text: io.TextIOWrapper, path: Path):
        self._text, self._path, self._length = text, path, 0

    def begin_row(self) -> None:
        """Note that the next line begins a row."""
        self._length = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(LONGEST_LINE):
            self._length += len(line)
            if self._length >= LONGEST_LINE:
                raise UserError(
                    f"{self._path}: a row is longer than {LONGEST_LINE >> 20} MB; check that it has line breaks"
                )
            yield line


class Parquet:
    """A Parquet file, read by row groups."""

    def fields(self, path: Path) -> list[str]:
        with parquet_file(path) as file:
            return file.schema_arrow.names

    def stretches(self, path: Path, size: int) -> list[Stretch]:
        with parquet_file(path) as file:
            sizes = _group_sizes(file)
        stretches = []
        start = total = 0
        for end, bytes_inside in enumerate(sizes, 1):
            total += bytes_inside
            if total >= size or end == len(sizes):
                stretches.append(Stretch(path, start, end, total))
                start, total = end, 0
        return stretches

    def records(self, stretch: Stretch, field: str) -> Iterator[tuple[int, object]]:
        with parquet_file(stretch.path) as file:
            end = file.metadata.num_row_groups if stretch.end is None else stretch.end
            groups = range(stretch.start, end)
            batches = file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[field])
            values = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            yield from enumerate(values, 1)

    def name(self, stretch: Stretch, number: int) -> str:
        with parquet_file(stretch.path) as file:
            rows_before = sum(file.metadata.row_group(group).num_rows for group in range(stretch.start))
        return f"row {rows_before + number}"


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """Return all rows of a Parquet file.

    Raises:
        UserError: if it cannot be read, or its rows would fill the memory.
    """
    rows, taken = [], 0
    most = max(_LARGEST_TABLE, _LARGEST_RATIO * path.stat().st_size)
    with parquet_file(path) as file:
        # A cell is at most as large as its group, in which it may be stored once for many rows.
        largest_cell = max([1, *_group_sizes(file)])
        rows_per_batch = max(1, min(_BATCH_ROWS, _BATCH_BYTES // largest_cell))
        for batch in file.iter_batches(rows_per_batch):
            taken += sum(map(_memory, batch.columns)) + _ROW_BYTES * len(batch)
            if taken > most:
                raise UserError(f"{path}: its rows take more than {most >> 20} MB; divide it into several files")
            rows += batch.to_pylist()
    return rows


def _group_sizes(file: Any) -> list[int]:
    """Return the uncompressed bytes of each row group.

    Those of a column would end the process: pyarrow does not catch what Arrow throws at a column whose description is
    damaged.
    """
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    return [group.total_byte_size for group in groups]


def _memory(values: Any) -> int:
    """Return about how many bytes an array of pyarrow takes as Python objects."""
    from pyarrow import types

    if types.is_dictionary(values.type):
        sizes = np.array(list(map(sys.getsizeof, values.dictionary.to_pylist())))
        indices = values.indices.drop_null().to_numpy()
        return int(sizes[indices].sum())
    if types.is_struct(values.type):
        inside = sum(map(_memory, values.flatten()))
    elif hasattr(values, "flatten"):
        inside = _memory(values.flatten())
    else:
        inside = values.nbytes
    return inside + _OBJECT_BYTES * len(values)


@contextmanager
def parquet_file(path: Path) -> Iterator:
    """Open a Parquet file.

    Raises:
        UserError: if pyarrow cannot read the file, also inside the ``with`` block.
        ModuleNotFoundError: if pyarrow is not installed.
    """
    import pyarrow  # in the extra corpora
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            yield file
    except pyarrow.ArrowMemoryError:
        raise
    except (pyarrow.ArrowNotImplementedError, OverflowError) as error:  # a codec, or a date out of range
        raise UserError(f"{path}: pyarrow cannot read it ({str(error)[:200]}); write it with other options") from None
    except (pyarrow.ArrowException, OSError, ValueError, EOFError) as error:
        if getattr(error, "errno", None):
            raise UserError(f"{path}: {os.strerror(error.errno)}") from None
        raise UserError(f"{path}: damaged, or not a {path.suffix} file ({str(error)[:200]})") from None


_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".jsonl", ".jsonlines", ".ndjson", ".json"), JsonLines()),
    ".csv": DelimitedText(","),
    ".tsv": DelimitedText("\t"),
    ".parquet": Parquet(),
}
