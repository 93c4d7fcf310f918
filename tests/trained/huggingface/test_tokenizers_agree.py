"""Tokenizers of every kind: ids and offsets are those of ``transformers``, or of sentencepiece for bare models."""

import json
from pathlib import Path

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, SPECIALS
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, open_tokenizer_path
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from tests.support.exports import train_sentencepiece
from tests.support.tokenizers import given as library_of, paragraphs

PIECES = st.sampled_from(
    ["the", "of", "Łódź", "don't", "New", "<url>", "[E1]", "[e1]", "É", "e\u0301", "ﬁ", "日", "😀", "\u200b", ",", "."]
)
GAPS = st.sampled_from(["", " ", "  ", "\t", "\u00a0"])
TEXTS = st.lists(st.one_of(PIECES, GAPS), max_size=9).map("".join)
MASKED = st.lists(st.one_of(PIECES, GAPS, st.just(MASK)), max_size=9).map("".join)
MASK_TOKEN = AddedToken(MASK, lstrip=True, normalized=False, special=True)
ROBERTA = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": MASK_TOKEN}
BERT = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}


def save(directory: Path, library: Tokenizer, roles: dict, user: tuple[str, ...] = (), special: tuple[str, ...] = ()):
    library.add_special_tokens([str(token) if token is not MASK_TOKEN else token for token in roles.values()])
    first, last = ((roles[role], library.token_to_id(roles[role])) for role in ("cls", "sep"))
    if library.post_processor is None:
        library.post_processor = processors.BertProcessing(last, first)
    names = {f"{role}_token": token for role, token in roles.items()}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, model_input_names=["input_ids", "attention_mask"], **names
    )
    fast.add_tokens(list(user))
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    fast.save_pretrained(directory)


def byte_bpe(directory, prefix, trimmed, special=()):
    library = library_of("roberta")
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trimmed, prefix)
    save(directory, library, ROBERTA, special=special)


def wordpiece(directory, lower, user=(), special=()):
    library = library_of("bert")
    library.normalizer = normalizers.BertNormalizer(lowercase=lower)
    save(directory, library, BERT, user, special)


def byte_fallback(directory):
    """As Llama's and Gemma's, in which a normalizer marks the starts of words."""
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(special_tokens=names, show_progress=False, vocab_size=400)
    library.train_from_iterator(paragraphs(300), trainer)
    save(directory, library, ROBERTA)


def sentencepiece_only(directory, **options):
    options = {"model_type": "unigram", "vocab_size": 90, "character_coverage": 1.0} | options
    (directory / "sentencepiece.bpe.model").write_bytes(train_sentencepiece(paragraphs(300), **options))


DIRECTORIES = {
    "byte-level BPE": lambda path: byte_bpe(path, False, True),
    "byte-level BPE, whole offsets": lambda path: byte_bpe(path, False, False),
    "byte-level BPE, prefix space": lambda path: byte_bpe(path, True, True),
    "WordPiece, cased": lambda path: wordpiece(path, False),
    "WordPiece, uncased, user's tokens": lambda path: wordpiece(path, True, ("New", "<url>")),
    "byte-level BPE, further special tokens": lambda path: byte_bpe(path, False, True, ("[E1]", "<url>")),
    "WordPiece, further special tokens": lambda path: wordpiece(path, True, ("New",), ("[E1]", "<url>")),
    "Unigram": lambda path: save(path, library_of("unigram"), ROBERTA),
    "Unigram, user's tokens": lambda path: save(path, library_of("unigram"), ROBERTA, ("New", "<url>")),
    "BPE, byte fallback": byte_fallback,
    "XLM-R": sentencepiece_only,
    "XLM-R, BPE and bytes": lambda path: sentencepiece_only(path, model_type="bpe", byte_fallback=True, vocab_size=400),
    "XLM-R, no dummy prefix": lambda path: sentencepiece_only(path, add_dummy_prefix=False),
    "XLM-R, suffix marks": lambda path: sentencepiece_only(path, treat_whitespace_as_suffix=True),
    "XLM-R, user's symbols": lambda path: sentencepiece_only(path, user_defined_symbols=["<url>"]),
    "CamemBERT": sentencepiece_only,
}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_a_directory_of_transformers_has_its_ids_everywhere(kind, tmp_path):
    DIRECTORIES[kind](tmp_path)
    family = "camembert" if kind == "CamemBERT" else "xlm-roberta" if "XLM" in kind else "roberta"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
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
            if kind.startswith("byte-level"):
                again = exported(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
                assert (again["input_ids"], again["offset_mapping"]) == (theirs["input_ids"], theirs["offset_mapping"])
            complete = ours.exported_ids[[BOS, *ours.encode_masked(masked), EOS]].tolist()
            assert complete == fast(with_mask)["input_ids"] == exported(with_mask)["input_ids"]

    check()


def test_a_sentencepiece_model_without_tokenizer_json(tmp_path):
    sentencepiece_only(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}')
    ours = open_tokenizer_path(tmp_path)
    assert [ours.token(index) for index in ours.encode_masked("<mask>.")] == [MASK, "▁", "."]


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


@pytest.mark.parametrize("kind", MODELS)
def test_a_bare_model_has_the_ids_of_sentencepiece_and_masks_in_place_of_words(kind):
    options = {"model_type": "unigram", "vocab_size": 90, "character_coverage": 1.0} | MODELS[kind]
    model = train_sentencepiece(paragraphs(300), **options)
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
