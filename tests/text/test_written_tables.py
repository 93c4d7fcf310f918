"""Cells that a format cannot hold."""

import pytest

from mae_lm_fairseq.text.tables import read_table, write_table
from mae_lm_fairseq.utils.errors import UserError


@pytest.mark.parametrize("sign", ["\t", "\n", "\r", "\0"])
def test_tsv_is_not_written_with_signs_that_would_be_read_otherwise(sign, tmp_path):
    rows = [{"text": f"a{sign}b", "label": "c"}]
    with pytest.raises(UserError, match=r"choose \.csv or \.jsonl"):
        write_table(tmp_path / "a.tsv", ["text", "label"], rows)
    assert not (tmp_path / "a.tsv").exists()
    for name in ("a.csv", "a.jsonl"):
        write_table(tmp_path / name, ["text", "label"], rows)
        assert [row for _, row in read_table(tmp_path / name).rows] == rows
