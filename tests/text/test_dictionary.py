"""Counts in ``dict.txt``."""

import pytest

from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.utils.errors import UserError


def test_counts_by_id(tmp_path):
    (tmp_path / "dict.txt").write_text("a 7\nb 0\n")
    assert read_counts(tmp_path / "dict.txt") == {4: 7, 5: 0}


def test_damage_is_named(tmp_path):
    (tmp_path / "dict.txt").write_text("a 7\nb\n")
    with pytest.raises(UserError, match=r"dict\.txt is not a dictionary of fairseq: line 2"):
        read_counts(tmp_path / "dict.txt")
