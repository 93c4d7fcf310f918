"""Tokenizers of sentencepiece alone: ids and offsets are those of ``transformers``, or of sentencepiece."""

import json
from pathlib import Path

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings, strategies as st

from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, open_tokenizer_path
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from tests.support.exports import train_sentencepiece
from tests.support.tokenizers import paragraphs

PIECES = st.sampled_from(
    ["the", "of", "Łódź", "don't", "New", "<url>", "[E1]", "[e1]", "É", "e\u0301", "ﬁ", "日", "😀", "\u200b", ",", "."]
)
GAPS = st.sampled_from(["", " ", "  ", "\t", "\u00a0"])
TEXTS = st.lists(st.one_of(PIECES, GAPS), max_size=9).map("".join)
MASKED = st.lists(st.one_of(PIECES, GAPS, st.just(MASK)), max_size=9).map("".join)


MODELS = {
    "unigram": {},
    "BPE, byte fallback": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400},
    "no dummy prefix": {"add_dummy_prefix": False},
    "suffix marks": {"treat_whitespace_as_suffix": True},
    "suffix marks, no dummy": {"treat_whitespace_as_suffix": True, "add_dummy_prefix": False},
    "user's symbols": {"user_defined_symbols": ["<url>"]},
    "spaces kept": {"remove_extra_whitespaces": False},
    "spaces kept, no dummy prefix": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "no normalisation": {"normalization_rule_name": "identity"},
}


def train(kind: str) -> bytes:
    """Return a small sentencepiece model."""
    options = {"model_type": "unigram", "vocab_size": 90, "character_coverage": 1.0} | MODELS[kind]
    return train_sentencepiece(paragraphs(300), **options)


def save(directory: Path, family: str, kind: str):
    """Save a model in place of a tokenizer."""
    (directory / "sentencepiece.bpe.model").write_bytes(train(kind))
    (directory / "config.json").write_text(json.dumps({"model_type": family}))


OF_XLM_R = ("unigram", "BPE, byte fallback", "no dummy prefix", "suffix marks", "user's symbols")


@pytest.mark.parametrize(("family", "kind"), [("camembert", "unigram"), *(("xlm-roberta", kind) for kind in OF_XLM_R)])
def test_a_directory_of_transformers_has_its_ids_everywhere(family, kind, tmp_path):
    save(tmp_path, family, kind)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    config = transformers.AutoConfig.for_model(
        family, vocab_size=len(fast), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=40 + fast.pad_token_id, pad_token_id=fast.pad_token_id,
    )  # fmt: skip
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    prepared, imported = open_tokenizer_path(tmp_path), import_foreign(tmp_path, "mae_lm")
    (tmp_path / "data").mkdir()
    prepared.save(tmp_path / "data")
    exported = exported_tokenizer(prepared, imported.symbols, 64)

    @given(TEXTS, MASKED)
    @settings(deadline=None, max_examples=60)
    def check(text, masked):
        theirs = fast(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        with_mask = masked.replace(MASK, fast.mask_token)
        for ours in (prepared, imported.tokenizer, find_tokenizer(tmp_path / "data")):
            ids, offsets = ours.encode_with_offsets(text)
            assert ours.exported_ids[ids].tolist() == theirs["input_ids"]
            assert list(map(tuple, offsets.tolist())) == theirs["offset_mapping"]
            assert ours.encode_lines([text])[0].tolist() == ours.encode_masked(text) == ids.tolist()
            complete = ours.exported_ids[[BOS, *ours.encode_masked(masked), EOS]].tolist()
            assert complete == fast(with_mask)["input_ids"] == exported(with_mask)["input_ids"]

    check()


def test_a_sentencepiece_model_without_tokenizer_json(tmp_path):
    save(tmp_path, "xlm-roberta", "unigram")
    ours = open_tokenizer_path(tmp_path)
    assert [ours.token(index) for index in ours.encode_masked("<mask>.")] == [MASK, "▁", "."]


@pytest.mark.parametrize("kind", MODELS)
def test_a_bare_model_has_the_ids_of_sentencepiece_and_masks_in_place_of_words(kind):
    model = train(kind)
    ours, theirs = SentencePieceTokenizer("x", model), sentencepiece.SentencePieceProcessor(model_proto=model)
    symbols = [theirs.id_to_piece(index) for index in range(theirs.get_piece_size())]
    try:
        exported = exported_tokenizer(ours, (*ours.symbols, MASK), 64)
    except UserError:
        exported = None

    @given(TEXTS, st.lists(st.sampled_from(["the", "of", "Łódź", "don't", ","]), min_size=1, max_size=6), st.data())
    @settings(deadline=None, max_examples=80)
    def check(text, words, data):
        ids, offsets = ours.encode_with_offsets(text)
        pieces = theirs.encode(text, return_type="proto").pieces
        assert [ours.symbols[index] for index in ids] == [symbols[piece.id] for piece in pieces]
        assert [text[start:end] for start, end in offsets] == [piece.surface for piece in pieces]
        assert ours.encode_masked(text) == ours.encode_lines([text])[0].tolist() == ids.tolist()
        ids, offsets = ours.encode_with_offsets(text := " ".join(words))
        numbers = [text.count(" ", 0, start + ("suffix" not in kind)) for start, _ in offsets.tolist()]
        masked = data.draw(st.integers(0, len(words) - 1))
        words[masked] = MASK
        before, after = (
            [index for index, number in zip(ids.tolist(), numbers, strict=True) if is_there(number)]
            for is_there in (masked.__gt__, masked.__lt__)
        )
        expected = [*before, ours.mask, *after]
        assert ours.encode_masked(" ".join(words)) == expected
        if exported is not None:
            assert exported(" ".join(words), add_special_tokens=False)["input_ids"] == expected

    check()
    assert (exported is not None) == (kind in ("unigram", "BPE, byte fallback", "no normalisation"))
