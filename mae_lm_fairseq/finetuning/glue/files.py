"""Readers for local copies of GLUE: the official TSV files, and the hub's layout in Parquet, JSON or JSON lines.

An unexpected column layout is an error. Malformed rows are reported with their line numbers, never dropped silently.
"""

import codecs
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mae_lm_fairseq.finetuning.glue.tasks import SCORE_RANGE, Task
from mae_lm_fairseq.text.records import parquet_file
from mae_lm_fairseq.text.text_files import Chunk
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_bytes

SUFFIXES = (".parquet", ".jsonl", ".json")
_INDICES = ("index", "id", "idx")
_MAX_SHOWN = 10


@dataclass
class Rows:
    """Rows of one set.

    Attributes:
        path: the file.
        sentences: one or two sentences per row.
        labels: class numbers or scores; empty for a test set.
        malformed: (line, problem) of each malformed row; these rows are not in ``sentences`` and ``labels``.
    """

    path: Path
    sentences: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[int | float] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)

    def describe_malformed(self) -> str:
        """Describe the malformed rows in a single string."""
        shown = "; ".join(f"line {line}: {problem}" for line, problem in self.malformed[:_MAX_SHOWN])
        more = len(self.malformed) - _MAX_SHOWN
        return shown + (f"; and {more} more" if more > 0 else "")


def read_split(task: Task, glue_dir: Path, official: str) -> Rows:
    """Read one set of a task.

    Args:
        task: the task.
        glue_dir: directory with one subdirectory per task, or the directory of this task.
        official: name of the set in the official layout.

    Raises:
        UserError: if the set does not exist or its columns do not match the task.
    """
    path = _find(task, glue_dir, official)
    labelled = not official.startswith("test")
    if path.suffix == ".tsv":
        return _read_tsv(task, path, labelled)
    columns = [*task.hub_columns, "label"] if labelled else list(task.hub_columns)
    rows = Rows(path)
    for line, record in _records(path):
        if missing := [column for column in columns if column not in record]:
            raise UserError(f"{path}: line {line} has no column {', '.join(missing)}; {task.name} needs {columns}")
        _add(rows, task, line, [record[column] for column in columns], labelled, _hub_label, record.get("idx"))
    return rows


def fingerprints(task: Task, glue_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of the file of each set, by its name in the official layout."""
    return {official: file_sha256(_find(task, glue_dir, official)) for official in task.splits.values()}


def _find(task: Task, glue_dir: Path, official: str) -> Path:
    hub = official.replace("dev", "validation")
    names = [f"{official}.tsv", *(f"{hub}{suffix}" for suffix in SUFFIXES), f"{hub}-00000-of-00001.parquet"]
    lower = task.name.lower()
    folders = [glue_dir / task.name, glue_dir / lower, glue_dir / lower.replace("-", ""), glue_dir]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise UserError(
        f"{glue_dir}: has no set {official} of {task.name}, neither in the official layout "
        f"({task.name}/{official}.tsv) nor in the hub's ({lower.replace('-', '')}/{hub}.parquet, .jsonl, .json)"
    )


# -------------------------------------------------------------------------------------------------------------- TSV


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, without the byte order mark."""
    data = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    return Chunk(path, 1, data, len(data)).lines()


def _read_tsv(task: Task, path: Path, labelled: bool) -> Rows:
    """Read a TSV file. GLUE does not use quoting, so every tab is a separator."""
    lines = read_lines(path)
    wanted = [*task.columns, task.label_column] if labelled else list(task.columns)
    if task.headerless and labelled:
        header, indices, first = 4, [3, 1], 1
    else:
        names = lines[0].split("\t") if lines else []
        if missing := [column for column in wanted if column not in names]:
            raise UserError(
                f"{path}: the header lacks columns of {task.name}: {', '.join(missing)} (it has {names!s:.500}); "
                "check that this is a file of that task, in the official layout"
            )
        if duplicates := [column for column in wanted if names.count(column) > 1]:
            raise UserError(f"{path}: the column {duplicates[0]} occurs twice; remove one")
        header, indices, first = len(names), [names.index(column) for column in wanted], 2
    index_column = next((names.index(name) for name in _INDICES if name in names), None) if not labelled else None
    rows = Rows(path)
    for number, line in enumerate(lines[first - 1 :], start=first):
        cells = line.split("\t")
        if len(cells) != header:
            rows.malformed.append((number, f"{len(cells)} columns instead of {header}"))
            continue
        index = None if index_column is None else cells[index_column]
        _add(rows, task, number, [cells[column] for column in indices], labelled, _tsv_label, index)
    return rows


def _tsv_label(task: Task, label: str) -> int | None:
    return task.labels.index(label) if label in task.labels else None


# ---------------------------------------------------------------------------------------------------------- the hub


def _records(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield (line or row number from 1, record) of a file in the Hugging Face layout."""
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    for line, record in enumerate(rows, start=1):
        if not isinstance(record, dict):
            raise UserError(f"{path}: line {line} is not a record: {record!r:.80}")
        yield line, record


def _parquet_rows(path: Path) -> list[dict]:
    with parquet_file(path) as file:
        return file.read().to_pylist()


def _json_rows(path: Path) -> list:
    lines = read_lines(path)
    text = "\n".join(lines)
    try:
        return json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: neither a JSON list nor JSON lines ({error})") from None


def _hub_label(task: Task, label: int | str) -> int | None:
    """Return the class number of a hub label; exported files may contain class names instead of numbers."""
    if isinstance(label, int) and 0 <= label < len(task.labels):
        return label
    return _tsv_label(task, str(label))


# ------------------------------------------------------------------------------------------------------------- both


def _add(rows: Rows, task: Task, line: int, cells: list, labelled: bool, to_class: Callable, index) -> None:
    """Add a row, or record why it is malformed.

    Raises:
        UserError: if the index of a test row is not its position. Predictions are matched by position.
    """
    sentences = tuple(cells[: len(task.columns)])
    if not all(map(is_text, sentences)):
        rows.malformed.append((line, "a sentence is empty or not text"))
        return
    if labelled:
        label = _score(cells[-1]) if task.is_regression else to_class(task, cells[-1])
        if label is None:
            allowed = f"a score from 0 to {SCORE_RANGE:g}" if task.is_regression else f"one of {', '.join(task.labels)}"
            rows.malformed.append((line, f"label {cells[-1]!r:.80} is not {allowed}"))
            return
        rows.labels.append(label)
    elif index is not None and str(index) != str(len(rows.sentences)):
        raise UserError(
            f"{rows.path}: line {line} has the index {index!s:.80} instead of {len(rows.sentences)}, so "
            "predictions would be assigned to the wrong rows; restore the original order"
        )
    rows.sentences.append(sentences)


def is_text(cell) -> bool:
    """Return whether a cell is non-empty text that can be encoded; JSON strings can contain lone surrogates."""
    try:
        return isinstance(cell, str) and bool(cell.strip() and cell.encode())
    except UnicodeEncodeError:
        return False


def number(cell) -> float | None:
    """Return the finite number in a cell; None if it has none."""
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _score(cell) -> float | None:
    value = number(cell)
    return value if value is not None and 0 <= value <= SCORE_RANGE else None
