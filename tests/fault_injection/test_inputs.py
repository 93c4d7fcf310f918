"""Each sort of bad input a few times, and what reads data-bins and text with anything that hypothesis comes up with."""

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
from tests.fault_injection import datasets, inputs, models, outcomes
from tests.fault_injection.workplace import Workplace

anything = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = st.one_of(
    st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)


TRIED = [
    (inputs.truncated_data_bins, 5),
    (inputs.damaged_data_bins, 50),
    (inputs.damaged_dictionaries, 20),
    (inputs.absurd_texts, 1),
    (inputs.truncated_checkpoints, 40),
    (inputs.absurd_options, 15),
    (datasets.damaged_glue, 2),
    (datasets.damaged_squad, 20),
    (datasets.damaged_predictions, 10),
    (models.damaged_bundles, 10),
    (models.absurd_checkpoints, 20),
    (models.damaged_exports, 4),
]
"""Each fault, and how often."""


def test_no_fault_is_left_out():
    known = [fault for module in (inputs, datasets, models) for fault, *_ in module.FAULTS]
    assert sorted(known, key=str) == sorted((fault for fault, _ in TRIED), key=str)


@pytest.mark.parametrize(("fault", "times"), TRIED, ids=lambda value: getattr(value, "__name__", None))
def test_every_case_ends_well(tmp_path, fault, times):
    rows = list(fault(Workplace(tmp_path / "place", ""), times))
    assert [row.losses for row in rows] == [[]] * len(rows)
    assert all(row.tried >= times for row in rows)


class _UntidyError(UserError):
    def __init__(self, message):
        super().__init__(message)
        self.code += "\nb"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (UserError("file: cut short"), None),
        (SystemExit(2), None),
        (UserError("a\nb"), None),
        (_UntidyError("a"), "more than a line"),
        (SystemExit(3), "exit code 3"),
        (ValueError("x"), "ValueError: x"),
    ],
)
def test_what_is_no_good_end_is_noticed(end, expected):
    def action():
        raise end

    found = outcomes.outcome(action)
    assert found is None if expected is None else found.startswith(expected)


def test_what_does_not_end_is_noticed(monkeypatch):
    monkeypatch.setattr(outcomes, "LONGEST_CASE_SECONDS", 0.1)

    def action():
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.01)

    assert outcomes.outcome(action) == "Hang: still going on after 0.1 s"
    assert outcomes.outcome(lambda: time.sleep(0.01)) is None


@anything
@given(content=BYTES)
def test_any_bytes_for_an_index(tmp_path, content):
    inputs.write_data_bin(tmp_path / "train")
    (tmp_path / "train.idx").write_bytes(b"MMIDIDX\x00\x00" + content)
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
    """Chunks hold every line once, whatever the bytes; a sample of all is all, or says what is not UTF-8."""
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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_of_100_megabytes(tmp_path, suffix):
    import gzip

    path = tmp_path / f"text{suffix}"
    content = b"ab cd " * (100_000_000 // 6)
    path.write_bytes(gzip.compress(content, 1) if suffix else content)
    with pytest.raises(UserError, match=f"a line is longer than {LONGEST_LINE >> 20} MB"):
        list(read_chunks(path))
