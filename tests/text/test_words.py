"""Words of ordinary text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mae_lm_fairseq.text.offsets import split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Anna's in New York.", "Anna's in New York ."),
        ('"U.S. e-mail", 1,000.50% (don\u2019t!)', '" U.S . e-mail " , 1,000.50 % ( don\u2019t ! )'),
        ("a--b #Ulm @x_y ...", "a - - b # Ulm @ x_y . . ."),
        ("naive\u0301 Stra\u00dfe \u05e9\u05dc, \u4eca", "naive\u0301 Stra\u00dfe \u05e9\u05dc , \u4eca"),
        ("ok \U0001f600\u2615\ufe0f!", "ok \U0001f600 \u2615\ufe0f !"),
        (" \t\n\x00", ""),
    ],
)  # fmt: skip
def test_words(text, words):
    assert [text[start:end] for start, end in split_words(text)] == words.split()


@given(st.text())
def test_words_are_in_order_and_leave_out_white_space_only(text):
    spans = split_words(text)
    left_out = list(text)
    assert [place for span in spans for place in span] == sorted(place for span in spans for place in span)
    for start, end in spans:
        assert start < end
        assert not any(character.isspace() for character in text[start:end])
        left_out[start:end] = [" "] * (end - start)
    assert all(character.isspace() or character < "\xa0" for character in left_out)
