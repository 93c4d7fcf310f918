"""Damaged input, a few cases of each kind; scripts/fault_injection.py tries more."""

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mae_lm_fairseq.text import text_files
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.text_files import read_chunks, sample_lines, split_lines
from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection import datasets, inputs, models, outcomes
from tests.fault_injection.damage import BYTES
from tests.fault_injection.training import Workplace
from tests.support.refusals import refused

FAULTS = (*inputs.FAULTS, *datasets.FAULTS, *models.FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.rows.__name__)
def test_every_case_ends_well(tmp_path, fault):
    rows = list(fault.rows(Workplace(tmp_path / "place", ""), fault.few))
    assert [row.losses for row in rows] == [[]] * len(rows)
    assert all(row.tried >= fault.few for row in rows)


class _UntidyError(UserError):
    def __str__(self):
        return "a\nb"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (UserError("file: truncated"), None),
        (SystemExit(2), None),
        (UserError("a\nb"), None),
        (_UntidyError("a"), "more than one line"),
        (SystemExit(3), "exit code 3"),
        (ValueError("x"), "ValueError: x"),
    ],
)
def test_bad_exits_are_reported(end, expected):
    def action():
        raise end

    problem = outcomes.outcome(action)
    assert problem is None if expected is None else problem.startswith(expected)


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_data_bin_that_is_cut_is_refused_at_every_length(tmp_path, suffix):
    inputs.write_data_bin(tmp_path / "train")
    path = (tmp_path / "train").with_suffix(suffix)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            check_data_bin(tmp_path / "train")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=BYTES, chunk_bytes=st.integers(1, 50))
def test_any_bytes_for_text(tmp_path, content, chunk_bytes):
    """Chunks have every line exactly once; sampling returns all lines, or reports what is no UTF-8 or no text."""
    path = Path(tmp_path, "text")
    path.write_bytes(content)
    try:
        chunks = list(read_chunks(path, chunk_bytes))
    except UserError as error:
        with refused(re.escape(str(error))):
            list(sample_lines([path], 10_000))
        return
    assert b"".join(chunk.data for chunk in chunks) == content.removeprefix(b"\xef\xbb\xbf")
    assert all(chunk.data.endswith(b"\n") for chunk in chunks[:-1])
    try:
        lines = [line for chunk in chunks for line in split_lines(chunk.data)]
    except UnicodeDecodeError:
        with refused("not UTF-8 at byte"):
            list(sample_lines([path], 10_000))
    else:
        assert list(sample_lines([path], 10_000)) == lines


def test_an_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"ab cd " * 1_000_000))
    with refused("a line is longer than 1 MB"):
        list(read_chunks(path))
