"""Tables of texts and labels in TSV, CSV, JSON, Parquet and plain text; the ending of a file's name tells its format.

TSV is that of GLUE: every tab separates two cells, and quotation marks are ordinary characters. CSV is that of Python's
``csv`` module: commas separate, and cells in quotation marks may hold commas, quotation marks and line breaks. In both
the first line names the columns. JSON lines hold one object per line, whose keys are the columns; a .json file can also
hold a list of objects. Empty lines are skipped, except in TSV of one column. Plain text has one text per line, in a
column called ``text``.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mae_lm_fairseq.text.records import check_no_json, csv_rows, parquet_rows
from mae_lm_fairseq.text.text_files import open_text, read_chunks
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text

WRITTEN = (".tsv", ".csv", ".jsonl")
SUFFIXES = (*WRITTEN, ".json", ".parquet", ".txt")
_OTHER_ENCODING = re.compile("[\ud800-\udfff]")
TEXT_COLUMN = "text"
"""The column of a plain text file."""


@dataclass
class Table:
    """The rows of a file.

    Attributes:
        columns: names, in the order of the file.
        rows: (line number, cells by column) of the well-formed rows; cells of JSON lines can be of any type.
        malformed: (line number, problem) of the other rows.
    """

    path: Path
    columns: tuple[str, ...]
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_plain_text(self) -> bool:
        """Whether the file has no names of columns."""
        return self.path.suffix.lower() == ".txt"

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise a UserError if the table lacks one of the columns."""
        for name in names:
            if name not in self.columns:
                known = ", ".join(map(repr, self.columns[:20]))
                raise UserError(f"{self.path}: has no column {name!r}; its columns are {known}")


def read_table(path: Path, header: Sequence[str] | None = None) -> Table:
    """Read a table; ``header`` has the columns of a TSV file whose first line does not name them.

    Raises:
        UserError: if the file cannot be read, has an unknown ending or no rows, names a column twice, or is not in the
            format of its ending. Rows with too few or too many cells are no error here, see :class:`Table`.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: unknown kind of file; its name must end in {', '.join(SUFFIXES)}")
    if suffix in (".tsv", ".csv", ".txt"):
        check_no_json(path)
    if suffix == ".tsv":
        cells = (line.split("\t") for line in _lines(path))
        table = _table_of_cells(path, enumerate(cells, 1), header)
    elif suffix == ".csv":
        with open_text(path) as stream:
            table = _table_of_cells(path, csv_rows(stream, path), header)
    elif suffix == ".parquet":
        table = _table_of_objects(path, list(enumerate(parquet_rows(path), 1)))
    elif suffix == ".txt":
        texts = [(number, {TEXT_COLUMN: line}) for number, line in enumerate(_lines(path), 1)]
        table = Table(path, (TEXT_COLUMN,), texts)
    else:
        table = _table_of_objects(path, _json_objects(path))
    for column in table.columns:
        if table.columns.count(column) > 1:
            raise UserError(f"{path}: two columns are called {column!r}; the first line must name the columns")
    if not table.rows and not table.malformed:
        raise UserError(f"{path}: has no rows")
    return table


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]):
    """Write a table as :func:`written_table` has it, atomically.

    Raises:
        UserError: if the format cannot hold a cell, or the file cannot be written.
    """
    write_text(path, written_table(path, columns, rows))


def written_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in the format of the ending of ``path``, one of :data:`WRITTEN`.

    Cells that a row lacks are empty, and left out of JSON lines.

    Raises:
        UserError: if the format cannot hold a cell.
    """
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
        return "".join(f"{line}\n" for line in lines)
    cells = [list(columns)]
    for row in rows:
        cells.append([cell_text(row.get(column)) for column in columns])
    file = io.StringIO()
    if suffix == ".csv":
        csv.writer(file).writerows(cells)
    else:
        for row in cells:
            file.write("\t".join(_tsv_cell(path, cell) for cell in row) + "\n")
    return file.getvalue()


def cell_text(cell: Any) -> str:
    """Return a cell as text: JSON values as JSON, others by str(); null, NaN and infinity as nothing."""
    if cell is None:
        return ""
    if isinstance(cell, float) and not math.isfinite(cell):
        return ""
    if isinstance(cell, int | float | list | dict):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return str(cell)


def _lines(path: Path) -> Iterator[str]:
    for chunk in read_chunks(path):
        yield from chunk.lines()


def _table_of_cells(path: Path, records: Iterator[tuple[int, list[str]]], header: Sequence[str] | None) -> Table:
    named = (cells for _, cells in records if any(cells))
    columns = header or next(named, None)
    if columns is None:
        raise UserError(f"{path}: is empty; its first line must name the columns")
    table = Table(path, tuple(columns))
    for line, cells in records:
        if any(map(_OTHER_ENCODING.search, cells)):
            raise UserError(f"{path}: line {line} is not UTF-8; convert the file")
        if len(cells) == len(columns):
            table.rows.append((line, dict(zip(columns, cells, strict=True))))
        elif cells not in ([], [""]):
            table.malformed.append((line, f"{len(cells)} columns, not {len(columns)}"))
    return table


def _table_of_objects(path: Path, records: list[tuple[int, dict[str, Any]]]) -> Table:
    columns = dict.fromkeys(column for _, record in records for column in record)
    return Table(path, tuple(columns), records)


def _json_objects(path: Path) -> list[tuple[int, dict[str, Any]]]:
    lines = list(_lines(path))
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    is_list = path.suffix.lower() == ".json" and bool(entries) and entries[0][1].lstrip().startswith("[")
    if is_list:
        with _json_errors(path, 1):
            entries = list(enumerate(json.loads("\n".join(lines)), 1))
    records = []
    for number, entry in entries:
        with _json_errors(path, number):
            record = entry if is_list else json.loads(entry)
            if not isinstance(record, dict):
                raise ValueError(f"it is {cell_text(record):.80}")
            json.dumps(record, ensure_ascii=False).encode()  # fails for half of a surrogate pair
        records.append((number, record))
    return records


@contextmanager
def _json_errors(path: Path, number: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: line {number} is not a JSON object ({error!s:.300}); correct it") from None


def _tsv_cell(path: Path, cell: str) -> str:
    if {"\t", "\n", "\r", "\0"}.intersection(cell):
        raise UserError(f"{path}: TSV cannot hold the tab or line break in {cell!r:.80}; choose .csv or .jsonl")
    return cell
