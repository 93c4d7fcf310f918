"""Damaged input, a few cases of each kind; scripts/fault_injection.py tries more."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.text_files import LONGEST_LINE, read_chunks, sample_lines, split_lines
from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection import datasets, inputs, models, outcomes, parsers
from tests.fault_injection.damage import BYTES, attempt
from tests.fault_injection.report import Row
from tests.fault_injection.training import Workplace

anything = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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

    found = outcomes.outcome(action)
    assert found is None if expected is None else found.startswith(expected)


@pytest.mark.parametrize("times", [1, 100])
def test_the_smallest_failure_is_reported(tmp_path, times):
    """hypothesis shrinks only the values that it generates; a failing value of ``first`` is kept as well."""
    row = Row("a number", "below 10")
    case = lambda number: "too large" if number >= 10 else None  # noqa: E731
    attempt(Workplace(tmp_path, ""), row, case, st.integers(0, 1000), times, first=[500, 1])
    assert row.losses[0] == "too large, with 500"
    assert row.losses[1:] == ["too large, with 10"] * (times > 1)


def test_a_case_that_raises_is_a_loss(tmp_path):
    row = Row("a number", "")
    attempt(Workplace(tmp_path, ""), row, lambda number: 1 // number, st.just(0), 1)
    assert row.losses == ["ZeroDivisionError: integer division or modulo by zero"]


@pytest.mark.parametrize("parser", parsers.PARSERS)
def test_a_parser_accepts_its_sample(tmp_path, parser):
    """A valid sample takes damaged ones past the first check."""
    assert parsers.parse(parser, parsers.PARSERS[parser].sample, tmp_path)


def test_unexpected_parser_exceptions_are_passed_on(tmp_path, monkeypatch):
    broken = parsers.Parser("file", lambda path: int(path.read_bytes()), b"1")
    monkeypatch.setitem(parsers.PARSERS, "broken", broken)
    with pytest.raises(ValueError, match="invalid literal"):
        parsers.parse("broken", b"x", tmp_path)


def test_hangs_are_reported(monkeypatch):
    monkeypatch.setattr(outcomes, "LONGEST_CASE_SECONDS", 0.1)

    def action():
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    assert outcomes.outcome(action) == "Hang: still running after 0.1 s"
    assert outcomes.outcome(lambda: time.sleep(0.01)) is None


@anything
@given(content=BYTES)
def test_any_bytes_for_an_index(tmp_path, content):
    inputs.write_data_bin(tmp_path / "train")
    (tmp_path / "train.idx").write_bytes(b"MMIDIDX\x00\x00" + content)
    with pytest.raises(UserError):
        check_data_bin(tmp_path / "train")


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_data_bin_that_is_cut_is_refused_at_every_length(tmp_path, suffix):
    inputs.write_data_bin(tmp_path / "train")
    path = (tmp_path / "train").with_suffix(suffix)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            check_data_bin(tmp_path / "train")


@anything
@given(content=BYTES)
def test_any_bytes_for_a_manifest(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError):
        Manifest.read(tmp_path / "manifest.json")


@anything
@given(content=BYTES, chunk_bytes=st.integers(1, 50))
def test_any_bytes_for_text(tmp_path, content, chunk_bytes):
    """Chunks contain every line exactly once; sampling returns all lines, or reports invalid UTF-8."""
    path = Path(tmp_path, "text")
    path.write_bytes(content)
    chunks = list(read_chunks(path, chunk_bytes))
    assert b"".join(chunk.data for chunk in chunks) == content.removeprefix(b"\xef\xbb\xbf")
    assert all(chunk.data.endswith(b"\n") for chunk in chunks[:-1])
    try:
        lines = [line for chunk in chunks for line in split_lines(chunk.data)]
    except UnicodeDecodeError:
        with pytest.raises(UserError, match="not UTF-8 at byte"):
            list(sample_lines([path], 10_000))
    else:
        assert list(sample_lines([path], 10_000)) == lines


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_of_100_megabytes(tmp_path, suffix):
    import gzip

    path = tmp_path / f"text{suffix}"
    content = b"ab cd " * (100_000_000 // 6)
    path.write_bytes(gzip.compress(content, 1) if suffix else content)
    with pytest.raises(UserError, match=f"a line is longer than {LONGEST_LINE >> 20} MB"):
        list(read_chunks(path))
