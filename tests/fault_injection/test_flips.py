"""Bits that are flipped in a few places of every kind of file; scripts/fault_injection.py flips more."""

import pytest

from tests.fault_injection import flips
from tests.fault_injection.training import Workplace


@pytest.mark.integration  # writes models and data of all kinds
def test_no_flipped_bit_is_read_without_a_word(tmp_path):
    rows = list(flips.flipped_bits(Workplace(tmp_path / "place", ""), 6))
    assert {row.fault: row.losses for row in rows if row.losses} == {}
    assert all(row.tried == 6 for row in rows)
    unchecked = [row for row in rows if row.survived_when.startswith("not checked")]
    assert len(unchecked) == len(flips.UNCHECKED)
