"""Cells that a format cannot hold, and columns that a table lacks."""

import pytest

from mae_lm_fairseq.text.tables import WRITTEN, Table, read_table, write_table
from tests.support.refusals import refused


@pytest.mark.parametrize("sign", ["\t", "\n", "\r", "\0"])
def test_tsv_is_not_written_with_signs_that_would_be_read_otherwise(sign, tmp_path):
    rows = [{"text": f"a{sign}b", "label": "c"}]
    with refused(r"choose \.csv or \.jsonl"):
        write_table(tmp_path / "a.tsv", ["text", "label"], rows)
    assert not (tmp_path / "a.tsv").exists()
    for name in ("a.csv", "a.jsonl"):
        write_table(tmp_path / name, ["text", "label"], rows)
        assert [row for _, row in read_table(tmp_path / name).rows] == rows


@pytest.mark.parametrize("ending", WRITTEN)
def test_text_is_written_as_it_is(ending, tmp_path):
    """Signs of other scripts are not written as codes, so that files can be searched."""
    path = tmp_path / f"a{ending}"
    write_table(path, ["text"], [{"text": "é東😀"}])
    assert "é東😀" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("cell", [None, float("nan"), float("-inf")])
def test_what_is_no_value_is_written_as_nothing(cell, ending, tmp_path):
    path = tmp_path / f"a{ending}"
    write_table(path, ["text", "score"], [{"text": "b", "score": cell}, {"text": "c"}])
    assert [row["score"] for _, row in read_table(path).rows] == ["", ""]


def test_a_missing_column_is_named_with_those_of_the_file(tmp_path):
    table = Table(tmp_path / "a.csv", ("first", "second"))
    table.check_columns(["second", "first"])
    with refused(r"a\.csv.*'third'.*'first', 'second'"):
        table.check_columns(["first", "third"])
