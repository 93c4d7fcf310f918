import gzip

import pytest

from mae_lm_fairseq.text.text_samples import read_lines, read_text, text_samples
from tests.support.refusals import refused


def encode(line):
    return [int(word) for word in line.split()] + [2]


def samples(text, length, limit=10**6, closing=()):
    return text_samples(text.split("\n"), encode, length, [0], list(closing), limit)


def test_texts_are_complete_lines_of_one_document():
    text = "11 12\n13\n14 15 16\n\n21\n \n31 32"
    assert samples(text, 6) == [[0, 11, 12, 2, 13, 2], [0, 14, 15, 16, 2], [0, 21, 2], [0, 31, 32, 2]]
    assert samples(text, 7, closing=[9]) == [
        [0, 11, 12, 2, 13, 2, 9],
        [0, 14, 15, 16, 2, 9],
        [0, 21, 2, 9],
        [0, 31, 32, 2, 9],
    ]


def test_long_lines_make_several_texts():
    assert samples("1 3 4 5 6 7\n8", 5) == [[0, 1, 3, 4, 5], [0, 6, 7, 2], [0, 8, 2]]
    assert samples("1 3 4 5 6 7\n8", 6) == [[0, 1, 3, 4, 5, 6], [0, 7, 2, 8, 2]]


def test_the_text_that_reaches_the_limit_is_the_last():
    text = "1 3\n4 5\n6 7\n\n8"
    every = samples(text, 4)
    assert [len(sample) for sample in every] == [4, 4, 4, 3]
    assert samples(text, 4, limit=15) == every
    for limit, count in ((1, 1), (4, 1), (5, 2), (8, 2), (12, 3), (13, 4)):
        assert samples(text, 4, limit) == every[:count], limit


def test_no_text():
    assert samples("\n\n \n", 8) == []


def test_files_are_read_one_after_the_other(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\ntwo\x0b\n\nthree")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"vier\n"))
    assert list(read_lines(tmp_path)) == ["one", "two\x0b", "", "three", "", "vier", ""]
    (tmp_path / "c").write_bytes(b"fine\n\xff\n")
    with refused("c: line 2"):
        list(read_lines(tmp_path / "c"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.TSV", "a.csv.gz", "a.parquet"])
def test_files_with_records_are_no_text(tmp_path, name):
    (tmp_path / "a").write_text("one\n")
    assert list(read_text(tmp_path)) == ["one", ""]
    (tmp_path / name).touch()
    for path in (tmp_path, tmp_path / name):
        with refused(name):
            list(read_text(path))
