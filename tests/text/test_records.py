"""Rows of Parquet files, which a few kilobytes can repeat any number of times."""

import contextlib
import itertools
import multiprocessing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from mae_lm_fairseq.text import records
from mae_lm_fairseq.text.records import Parquet, parquet_rows
from mae_lm_fairseq.utils.errors import UserError
from tests.support.refusals import refused

TABLE = {
    "numbers": [1, None, 3],
    "texts": ["x", None, "zz"],
    "lists": [["p", "q"], [], None],
    "objects": [{"k": 1, "l": ["a"]}, None, {"k": 2, "l": []}],
    "categories": pa.array(["u", None, "u"]).dictionary_encode(),
    "bytes": [b"1", b"2", None],
    "nulls": [None] * 3,
    "nested": [[{"m": [{"n": "o"}]}]] * 3,
}


@pytest.mark.parametrize("rows", [3, 0])
def test_rows_of_every_type_are_read(tmp_path, rows):
    table = pa.table(TABLE).slice(0, rows)
    parquet.write_table(table, tmp_path / "a.parquet")
    assert parquet_rows(tmp_path / "a.parquet") == table.to_pylist()


REPEATED = {
    "a text": ["x" * 1000] * 10_000,
    "a category": pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), ["x" * 1000]),
    "a long text": ["x" * 1_000_000] * 10,
    "nothing": pa.nulls(100_000),
    "nothing in a list": [[None] * 200_000],
}


@pytest.mark.parametrize("content", REPEATED)
def test_a_small_file_that_repeats_a_value_is_refused(tmp_path, monkeypatch, content):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": REPEATED[content]}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    parquet_rows(path)
    monkeypatch.setattr(records, "_LARGEST_TABLE", 5_000_000)
    with refused(r"a\.parquet"):
        parquet_rows(path)


def read_every_flip(path: Path) -> None:
    """Read a table with each bit flipped in turn; end this process with another exit code if one passes as an error."""
    content = path.read_bytes()
    for position, bit in itertools.product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with contextlib.suppress(UserError):
            parquet_rows(path)
        with contextlib.suppress(UserError):
            Parquet().stretches(path, 100)


@pytest.mark.integration
def test_no_flipped_bit_of_a_parquet_file_ends_the_process(tmp_path):
    """pyarrow lets what Arrow throws at a damaged description of a column end the process."""
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"sentence": ["a b", None, "c"], "label": [0, 1, 0]}), path)
    process = multiprocessing.get_context("fork").Process(target=read_every_flip, args=(path,))
    process.start()
    process.join(300)
    assert process.exitcode == 0
