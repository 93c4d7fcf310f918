import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mae_lm_fairseq.text.offsets import encode_with_spans, split_words, word_numbers
from mae_lm_fairseq.text.sentencepiece_tokenizer import WORD_START, SentencePieceTokenizer
from tests.support.tokenizers import make
from tests.text.test_tokenizer import TEXT, train

LETTERS_DIGITS_SIGNS = st.characters(categories=["L", "N", "P", "S"], exclude_characters=WORD_START)
NICE_TEXTS = st.lists(st.text(LETTERS_DIGITS_SIGNS, min_size=1, max_size=6), max_size=8).flatmap(
    lambda words: st.sampled_from([" ", "\n", "\u3000", "  "]).map(lambda space: space.join(words))
)
# Characters that normalisation changes most: ligatures, fractions, half widths, accents, zero widths, controls, emoji.
ODD_TEXTS = st.text(
    st.sampled_from("ab ﬁ½ﷺｶﾞe\u0301\u200b\ufeff\x00\r\n\t▁日👩\u200d👧가각\u1100\u1161'.ǅΩ"), max_size=20
)


@pytest.fixture(scope="module", params=["bpe", "unigram", "bytes", "byte-bpe", "gpt2"])
def tokenizer(request, tmp_path_factory):
    if request.param in ("byte-bpe", "gpt2"):
        return make(request.param)
    options = {
        "bpe": {},
        "unigram": {"model_type": "unigram", "vocab_size": 45},
        "bytes": {"byte_fallback": True, "vocab_size": 320},
    }[request.param]
    return SentencePieceTokenizer(train(tmp_path_factory.mktemp("offsets") / "a.model", [*TEXT, "ﬁne ½ ½"], **options))


def slices(tokenizer, text):
    return [text[begin:end] for begin, end in encode_with_spans(tokenizer, text)[1]]


@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=30), ODD_TEXTS))
def test_spans_ascend_and_no_answer_begins_or_ends_with_white_space(tokenizer, text):
    ids, spans = encode_with_spans(tokenizer, text)
    assert ids.tolist() == tokenizer.encode_lines([text])[0].tolist()
    assert spans.shape == (len(ids), 2)
    assert (np.diff(spans, axis=0) >= 0).all()
    for (begin, _), (_, end) in itertools.combinations_with_replacement(spans.tolist(), 2):
        assert 0 <= begin <= end <= len(text)
        assert text[begin:end] == text[begin:end].strip()


@settings(deadline=None)
@given(text=NICE_TEXTS)
def test_every_visible_character_belongs_to_a_piece(tokenizer, text):
    _, spans = encode_with_spans(tokenizer, text)
    covered = {place for begin, end in spans.tolist() for place in range(begin, end)}
    assert covered >= {place for place, character in enumerate(text) if not character.isspace()}
    assert all(begin < end for begin, end in spans.tolist())


@settings(deadline=None)
@given(text=NICE_TEXTS)
def test_words_are_found_again(tokenizer, text):
    """The pieces that touch a word cover exactly that word, without any character of its neighbours."""
    _, spans = encode_with_spans(tokenizer, text)
    for word in re.finditer(r"\S+", text):
        touching = spans[(spans[:, 0] < word.end()) & (spans[:, 1] > word.start())]
        assert text[touching[0, 0] : touching[-1, 1]] == word.group()


def test_all_pieces_of_a_character_have_its_span(tmp_path):
    tokenizer = SentencePieceTokenizer(train(tmp_path / "a.model", byte_fallback=True, vocab_size=320))
    assert set(slices(tokenizer, " 日 ")) == {"日"}
    assert len(slices(tokenizer, " 日 ")) == 4  # a word start and three bytes
    assert set(slices(tokenizer, "½")) == {"½"}


@pytest.mark.parametrize(
    ("text", "spans", "numbers"),
    [
        (" Don't  (go)\tnow ", [(1, 4), (4, 5), (5, 6), (8, 9), (9, 11), (11, 12), (13, 16)], [0, 0, 0, 1, 1, 1, 2]),
        (" Don't  (go)\tnow ", [(0, 4), (4, 5), (5, 6), (6, 9), (9, 11), (11, 12), (12, 16)], [0, 0, 0, 1, 1, 1, 2]),
        ("", [], []),
        ("a b  ", [(0, 1), (1, 3), (3, 5)], [0, 1, 1]),  # byte-level BPE keeps white space at the end as a token
        ("a b  ", [(0, 1), (2, 3), (3, 3)], [0, 1, 1]),
        ("a b", [(0, 1), (2, 3), (2, 3)], [0, 1, 1]),  # a lone word start
    ],
)
def test_words_are_separated_by_white_space(text, spans, numbers):
    assert word_numbers(text, spans) == numbers


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
