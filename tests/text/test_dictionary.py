"""``dict.txt``: symbols as fairseq reads them, and counts."""

import pytest
from fairseq.data import Dictionary
from hypothesis import example, given, strategies as st

from mae_lm_fairseq.text.dictionary import read_counts, read_symbols
from mae_lm_fairseq.utils.errors import UserError
from tests.support.refusals import refused


def test_counts_by_id(tmp_path):
    (tmp_path / "dict.txt").write_text("a 7\nb 0\n")
    assert read_counts(tmp_path / "dict.txt") == {4: 7, 5: 0}


def test_damage_is_named(tmp_path):
    (tmp_path / "dict.txt").write_text("a 7\nb\n")
    with refused(r"dict\.txt .*line 2"):
        read_counts(tmp_path / "dict.txt")


@pytest.mark.parametrize(
    ("content", "symbols"),
    [
        ("▁t -0\n▁a -1\nin -2\n", ("▁t", "▁a", "in")),  # a .vocab of sentencepiece
        ("a 1 \nb 2 \n", ("a", "b")),
        ("a 1\rb 2\r", ("a", "b")),
        ("a b 1", ("a b",)),
    ],
)
def test_what_fairseq_reads_is_read(tmp_path, content, symbols):
    (tmp_path / "dict.txt").write_text(content, newline="")
    assert read_symbols(tmp_path / "dict.txt")[4:-1] == symbols


SYMBOLS = st.sampled_from(["a", "b", "▁t", "<mask>", "<unk>", "a b", " ", "é", "a\x85"])
COUNTS = st.sampled_from(["1", "-0", "+3", "1_0", "x", "", "1 ", "5 #fairseq:overwrite", "٣", "1.5"])


@given(st.lists(st.tuples(SYMBOLS, COUNTS), max_size=4), st.sampled_from(["\n", "\r\n", "\r"]))
@example([("<unk>", "999 #fairseq:overwrite")], "\n")
@example([("a", "1"), ("<mask>", "1")], "\n")
def test_symbols_are_those_of_fairseq_or_the_file_is_refused(tmp_path_factory, entries, end):
    path = tmp_path_factory.getbasetemp() / "dict.txt"
    path.write_text("".join(f"{symbol} {count}{end}" for symbol, count in entries), newline="")
    try:
        symbols = read_symbols(path)
    except UserError:
        return
    theirs = Dictionary.load(str(path))
    theirs.add_symbol("<mask>")  # as the task does
    assert symbols == tuple(theirs.symbols)
