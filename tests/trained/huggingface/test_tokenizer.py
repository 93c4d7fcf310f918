"""The exported fast tokenizer against sentencepiece."""

import unicodedata

import pytest
import sentencepiece
from hypothesis import given, settings, strategies as st
from tokenizers.models import Unigram

from mae_lm_fairseq.text.comparison_texts import SENTENCES
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK
from mae_lm_fairseq.trained.huggingface import comparison
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_tokenizer
from tests.support.exports import pretrained, train_sentencepiece
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def both(any_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "sentencepiece.bpe.model"
    path.write_bytes(any_model)
    tokenizer = SentencePieceTokenizer(path)
    return tokenizer, exported_tokenizer(tokenizer, (*tokenizer.symbols, MASK), 64)


def same(both, texts):
    tokenizer, fast = both
    ours = [ids.tolist() for ids in tokenizer.encode_lines(list(texts))]
    theirs = fast(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    if isinstance(fast.backend_tokenizer.model, Unigram):  # equally probable segmentations, see cards.toml
        ours, theirs = [sorted(ids) for ids in ours], [sorted(ids) for ids in theirs]
    assert theirs == ours


ODD = ("  a   b ", "\ta\u00a0b\u3000c", "", " ", "ђ", "aђђb ђ", "\U0001f600 \U0001f600", "ﬁｆ①")
"""White space and unknown characters."""


def test_ids_are_those_of_sentencepiece_on_text(both, lines):
    same(both, [*lines[300:], *SENTENCES, *ODD])


# Without the characters named in cards.toml: marks and joiners, jamo, special tokens, the sign for a space.
CHARACTERS = st.characters(
    blacklist_categories=("Cs", "Cf", "Cn", "Co", "Mn", "Me", "Mc", "Sk"),
    blacklist_characters="\u2581\uff9e\uff9f",
).filter(lambda character: not unicodedata.name(character, "").startswith(("HANGUL CHO", "HANGUL JU", "HANGUL JO")))
LETTERS = st.sampled_from([*"abcdenrst éß.,'?0123  ", "e\u0301"])
TEXTS = st.lists(LETTERS | CHARACTERS, max_size=40).map("".join)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TEXTS.filter(lambda text: "<" not in text), min_size=1, max_size=8))
def test_ids_are_those_of_sentencepiece_on_any_supported_text(both, texts):
    same(both, texts)


@pytest.mark.parametrize("text", ["ﬁ\u0301", "\u1112\u1161\u11ab", "q\u0323\u0307\u0323 t\u0323\u0307", "²\u200d"])
def test_normalisation_differs_where_the_exceptions_say(both, text):
    """If this fails, `tokenizers` has improved, and the exceptions in cards.toml can be shortened."""
    tokenizer, fast = both
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))
    theirs = fast.backend_tokenizer.normalizer.normalize_str(text)
    assert processor.normalize(text).removeprefix("▁").replace("▁", " ") != theirs


def test_mask_in_text_becomes_one_token(both, lines):
    tokenizer, fast = both
    mask = len(tokenizer.symbols)
    assert fast.mask_token_id == mask
    encode = {"add_special_tokens": False}
    first, second = lines[0].rstrip(".?!"), lines[1]
    ids = fast(f"{first} <mask> {second}", **encode)["input_ids"]
    parts = [fast(part, **encode)["input_ids"] for part in (first, second)]
    assert ids == [*parts[0], mask, *parts[1]]
    # Without a space the same word continues: no piece for the start of a word.
    assert fast.convert_ids_to_tokens(fast("<mask>.", **encode)["input_ids"]) == ["<mask>", "."]
    assert fast.decode(ids) == f"{fast.decode(parts[0])} <mask> {fast.decode(parts[1])}"


def test_special_tokens_pairs_and_padding(both):
    _, fast = both
    first, second = (fast(text, add_special_tokens=False)["input_ids"] for text in ("abc de", "er"))
    batch = fast(["abc de", "er"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [
        [0, *first, 2],
        [0, *second, 2, *[1] * (len(first) - len(second))],
    ]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["attention_mask"].tolist() == batch["input_ids"].ne(1).long().tolist()
    # As in fairseq's sentence_prediction with its separator.
    assert fast("abc de", "er")["input_ids"] == [0, *first, 2, 2, *second, 2]
    assert fast("abc " * 200, truncation=True)["input_ids"][-1] == 2
    assert len(fast("abc " * 200, truncation=True)["input_ids"]) == 64


def test_decoding_restores_text(both):
    tokenizer, fast = both
    text = "abc de, er!"
    ids = fast(text)["input_ids"]
    assert 3 not in ids  # <unk> would be spelled out
    assert fast.decode(ids, skip_special_tokens=True) == text == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user_defined_symbols": ["<sep>"]}, "user-defined"),
        ({"remove_extra_whitespaces": False}, "spaces"),
        ({"model_type": "char"}, "BPE nor unigram"),
    ],
)
def test_unsupported_models_are_refused(lines, options, reason):
    tokenizer = SentencePieceTokenizer("model", train_sentencepiece(lines[:100], **{"vocab_size": 200, **options}))
    with refused(reason):
        exported_tokenizer(tokenizer, (*tokenizer.symbols, MASK), 64)


def test_a_dictionary_that_lacks_pieces_is_refused(model):
    tokenizer = SentencePieceTokenizer("model", model)
    with refused("pieces that the dictionary lacks"):
        exported_tokenizer(tokenizer, (*tokenizer.symbols[:-1], MASK), 64)


@pytest.mark.parametrize("differing", [0, 2])
def test_lines_with_subwords_in_another_order_are_counted(differing, lines, tmp_path, monkeypatch):
    original = pretrained(model=train_sentencepiece(lines[:300], "unigram"))
    exported = comparison.exported_sequence
    orders = [-1] * differing + [1] * 1000
    monkeypatch.setattr(comparison, "exported_sequence", lambda *texts: exported(*texts)[:: orders.pop(0)])
    ids, reordered = comparison.write_compared_tokenizer(original, tmp_path, lines[:4])
    assert reordered == differing
    assert [(row[0], row[-1]) for row in ids] == 4 * [(BOS, EOS)]
