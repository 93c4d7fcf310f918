"""BLiMP's and Zorro's layouts."""

import json

import pytest

from mae_lm_fairseq.measures.minimal_pairs.files import Pair, Paradigm, read_paradigms
from mae_lm_fairseq.utils.errors import UserError

ROW = {"UID": "wh_island", "field": "syntax", "sentence_good": "Good.", "sentence_bad": "Bad.", "pairID": "0"}


def write_blimp(directory, *rows, name="file"):
    directory.joinpath(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_blimp(tmp_path):
    write_blimp(tmp_path, ROW, {**ROW, "sentence_good": "Fine."})
    write_blimp(tmp_path, {**ROW, "UID": "npi", "field": "a/b"}, name="z")
    assert read_paradigms(tmp_path) == [
        Paradigm("npi", "a_b", [Pair("Good.", "Bad.")]),
        Paradigm("wh_island", "syntax", [Pair("Good.", "Bad."), Pair("Fine.", "Bad.")]),
    ]


def test_zorro_has_the_ungrammatical_sentence_first(tmp_path):
    (tmp_path / "agreement-across_1_adjective.txt").write_text("bad one .\ngood one .\nbad two .\ngood two .\n")
    (tmp_path / "LICENSE").write_text("MIT")
    [paradigm] = read_paradigms(tmp_path)
    assert paradigm[:2] == ("agreement-across_1_adjective", "agreement")
    assert paradigm.pairs == [Pair("good one .", "bad one ."), Pair("good two .", "bad two .")]


def test_limit_is_of_each_file_and_evenly_spaced(tmp_path):
    write_blimp(tmp_path, *({**ROW, "sentence_good": str(number)} for number in range(5)))
    write_blimp(tmp_path, *[{**ROW, "UID": "b"}] * 2, name="b")
    few, many = read_paradigms(tmp_path, limit=3)
    assert len(few.pairs) == 2
    assert [pair.good for pair in many.pairs] == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.jsonl": "", "b.txt": ""}, "and holds 1 and 1"),
        ({"a.jsonl": json.dumps(ROW) + "\nnothing\n"}, r"a\.jsonl: line 2 is not a JSON object with UID"),
        ({"a.jsonl": json.dumps({**ROW, "sentence_bad": " "})}, r"a\.jsonl: line 1 is not"),
        ({"a.jsonl": ""}, r"a\.jsonl: must hold the pairs of one paradigm, and holds those of 0"),
        ({"a.txt": "one\ntwo\nthree\n"}, r"a\.txt: has 3 lines, which are not pairs"),
    ],
)
def test_invalid_directories_are_refused(tmp_path, content, message):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_paradigms(tmp_path)
