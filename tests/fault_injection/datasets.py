"""Damaged GLUE and SQuAD files and predictions. Each function yields rows of the table."""

import functools
import io
import runpy
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis.strategies import SearchStrategy
from pyarrow import parquet

from mae_lm_fairseq.finetuning.sentences.data_bin import write_data_bin
from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, GlueTask
from mae_lm_fairseq.text.data_bin import TOKENIZER, check_data_bin
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.span_windows import SpanWindows
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.utils.files import read_json
from tests.fault_injection.damage import TEXTS, Damage, attempt_file, damaged, damaged_json
from tests.fault_injection.outcomes import VALID_OR_NOTHING, outcome, product_outcome, quietly
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import Workplace
from tests.support import ROOT, answering, glue

# -------------------------------------------------------------------------------------------------------------- GLUE

GLUE = ("CoLA", "STS-B", "RTE")
"""Tasks without a header row, with real-valued scores, and with sentence pairs and named classes."""
ROWS = 6
_CELLS = ("", " ", "\0", "nan", "1e999", "-1", "9" * 5000, "\ufeff", "a\rb", "\x85", "\t", "entailment", "two\nlines")
_COLUMNS = (
    *([1], [2**63 - 1], [b"\xff"], [None], [[1]], [{"a": 1}], [float("nan")], [True]),
    pa.array([2**62], pa.timestamp("ms")),
    pa.array([2**31 - 1], pa.date32()),
    pa.array([b"\xff\xfe"]).cast(pa.large_binary()),
    pa.array(["a"]).dictionary_encode(),
)
"""First cell of each replacement column for a Parquet table."""


def damaged_tsv(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that changes one cell of a row, or damages the bytes."""
    lines = [line.split("\t") for line in content.decode().split("\n")]

    def change(row: int, column: int, cell: str) -> bytes:
        cells = lines[row].copy()
        cells[column % len(cells)] = cell
        return "\n".join("\t".join(line) for line in (*lines[:row], cells, *lines[row + 1 :])).encode()

    cells = st.sampled_from([*_CELLS, *lines[0], *lines[1]])
    changed = st.builds(change, st.integers(0, len(lines) - 1), st.integers(0, len(lines[0]) - 1), cells)
    return changed | _damaged_text(content)


def damaged_records(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that damages one line of a JSON lines file, or its bytes."""
    lines = content.splitlines(keepends=True)
    return damaged_json(lines[1]).map(lambda line: b"".join([lines[0], line, b"\n", *lines[2:]])) | _damaged_text(
        content
    )


def damaged_parquet(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that replaces one column of a table, or damages its bytes."""
    table = parquet.read_table(io.BytesIO(content))

    def change(place: int, name: str, column: list | pa.Array) -> bytes:
        cells = pa.array(column).take(pa.array([0] * table.num_rows))
        return _parquet(table.set_column(place, name, [cells]))

    columns = st.integers(0, table.num_columns - 1)
    names = st.sampled_from([*table.column_names, "other"])
    return st.builds(change, columns, names, st.sampled_from(_COLUMNS)) | _damaged_text(content)


def _damaged_text(content: bytes) -> SearchStrategy[bytes]:
    return damaged(content) | st.sampled_from(TEXTS)


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


LAYOUTS: dict[str, Damage] = {
    "tsv": damaged_tsv,
    "jsonl": damaged_records,
    "json": damaged_json,
    "parquet": damaged_parquet,
}


def damaged_glue(place: Workplace, times: int) -> Iterator[Row]:
    """Damage one set of a GLUE task in every layout; the other sets stay valid."""
    row = Row(
        "a set of GLUE, cut, or with other types, columns, cells, labels, bytes; in every layout", VALID_OR_NOTHING
    )
    tokenizer = SentencePieceTokenizer(glue.write_tokenizer(place.directory / "tokenizer") / TOKENIZER)
    for task in map(TASKS.get, GLUE):
        for layout, damage in LAYOUTS.items():
            folder = _write_sets(task, place.directory / f"{task.name}-{layout}", layout)
            valid = place.directory / f"valid-{task.name}-{layout}"
            prepare = functools.partial(_prepare, task, folder, tokenizer)
            prepare(valid)
            check = functools.partial(_check_data, valid)
            for path in sorted(folder.rglob(f"*.{layout}")):
                case = functools.partial(product_outcome, prepare, check, place.directory / "out")
                attempt_file(place, row, path, damage, case, times, times)
    yield row


def _write_sets(task: GlueTask, folder: Path, layout: str) -> Path:
    sets = glue.make_rows(task, ROWS)
    if layout == "tsv":
        return glue.write_official(folder, task, sets)
    glue.write_hub(folder, task, sets, as_list=layout != "jsonl")
    if layout == "parquet":
        for path in folder.rglob("*.json"):
            path.with_suffix(".parquet").write_bytes(_parquet(pa.Table.from_pylist(read_json(path))))
            path.unlink()
    return folder


def _prepare(task: GlueTask, folder: Path, tokenizer: SentencePieceTokenizer, destdir: Path) -> None:
    write_data_bin(GlueFiles(task, folder, skip_malformed=True), tokenizer, 32, destdir)


def _check_data(valid: Path, destdir: Path) -> None:
    names, expected = ({path.relative_to(directory) for path in directory.rglob("*")} for directory in (destdir, valid))
    if names != expected:
        raise ValueError(f"other files: {names ^ expected}")
    for path in destdir.rglob("*.bin"):
        check_data_bin(path.with_suffix(""))


# ------------------------------------------------------------------------------------------------------------- SQuAD


def damaged_squad(place: Workplace, times: int) -> Iterator[Row]:
    """Damage a question file that is read for training and split by preprocess/squad."""
    row = Row(
        "a file of SQuAD, cut, or with other types, keys missing or twice, other bytes; read and split",
        VALID_OR_NOTHING,
    )
    tokenizer = SentencePieceTokenizer(answering.write_tokenizer(place.directory / "tokenizer") / TOKENIZER)
    split = runpy.run_path(str(ROOT / "preprocess/squad/split.py"))["main"]
    path = answering.write_squad(place.directory / "squad.json", version_2=True, people=3)

    def read() -> None:
        windows = SpanWindows(read_squad(path, version_2=True), tokenizer, 32, 8, seed=1)
        windows.batch([windows[number] for number in range(len(windows))])

    def split_file(out: Path) -> None:
        split([str(path), "--dev-articles", "1", "--out", str(out)])

    def check(out: Path) -> None:
        for name in ("train.json", "dev.json"):
            read_squad(out / name, version_2=True)

    def case() -> str | None:
        return outcome(read) or product_outcome(split_file, check, place.directory / "out")

    quietly(lambda: (read(), split_file(place.directory / "valid")))
    attempt_file(place, row, path, damaged_json, case, 10 * times, 5 * times)
    yield row


FAULTS = (
    Fault(damaged_glue, 3, 10, 100),
    Fault(damaged_squad, 20, 50, 500),
)
