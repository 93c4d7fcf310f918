"""Tokenizers of Hugging Face's library, and GPT-2's, with fairseq's ids."""

import json
import pickle

import numpy as np
import pytest
import tokenizers
import transformers
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from hypothesis import given, settings, strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from mae_lm_fairseq.text.dictionary import read_symbols, write_symbols
from mae_lm_fairseq.text.hugging_face_tokenizer import FairseqBPETokenizer, HuggingFaceTokenizer
from mae_lm_fairseq.text.tokenizer import MASK, SPECIALS, UNK
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, open_tokenizer_path
from mae_lm_fairseq.text.tokenizer_training import TRAINED_KINDS, train_tokenizer
from tests.support.refusals import refused
from tests.support.tokenizers import (
    ALL_KINDS,
    HOSTILE,
    LONG,
    SIZES,
    fairseq_files,
    given as given_library,
    make,
    paragraphs,
    write,
)

LIBRARY_KINDS = [kind for kind in ALL_KINDS if not kind.startswith("sentencepiece")]
TEXT = st.text(st.sampled_from("the of “é\u0301▁Ġ#<s>[]/ \t\x00ﬁ日👩\u200d\u3000½"), max_size=30)


@pytest.fixture(scope="module", params=LIBRARY_KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind):
    return make(kind)


def the_library(tokenizer) -> tokenizers.Tokenizer:
    """Return the library's tokenizer from the file; special tokens that have a role are ordinary text."""
    if isinstance(tokenizer, FairseqBPETokenizer):
        return tokenizer.library
    described = json.loads(tokenizer.files["tokenizer.json"])
    for token in described["added_tokens"]:
        token["special"] &= token["content"] not in tokenizer.further_specials
    library = tokenizers.Tokenizer.from_str(json.dumps(described))
    library.encode_special_tokens = True
    return library


def assert_the_librarys(tokenizer, lines):
    """Check ids, and the text that they stand for, against the library."""
    library, (*specials, unknown) = the_library(tokenizer), tokenizer.exported_ids[[0, 1, 2, tokenizer.mask, UNK]]
    for line, ours in zip(lines, tokenizer.encode_lines(lines), strict=True):
        # Unigram finds special tokens in its vocabulary; in a data-bin they would end a line, or be masks.
        theirs = library.encode(line, add_special_tokens=False).ids
        theirs = [unknown if index in specials else index for index in theirs]
        assert tokenizer.exported_ids[ours].tolist() == theirs
        assert tokenizer.decode(ours) == library.decode(theirs, skip_special_tokens=False)


def test_ids_and_text_are_the_librarys(tokenizer):
    assert_the_librarys(tokenizer, [*paragraphs(200, seed=1), *HOSTILE])


@pytest.mark.parametrize("kind", ["byte-bpe", "bert", "unigram"])
def test_a_megabyte_without_a_space(kind):
    assert_the_librarys(make(kind), [LONG])


@settings(deadline=None)
@given(line=st.one_of(TEXT, st.text(max_size=30)))
def test_ids_and_text_are_the_librarys_on_any_text(tokenizer, line):
    assert_the_librarys(tokenizer, [line])


def test_the_dictionary_is_fairseqs(tokenizer, tmp_path):
    write_symbols(tokenizer.symbols, tmp_path / "dict.txt")
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    assert tuple(dictionary.symbols[:4]) == SPECIALS
    assert dictionary.symbols == tokenizer.symbols
    assert dictionary.add_symbol(MASK) == tokenizer.mask


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_tokenizers_that_we_train_have_fairseqs_order(kind):
    tokenizer = make(kind)
    assert tokenizer.exported_ids.tolist() == list(range(tokenizer.mask + 1))
    assert len(tokenizer.pieces) + 3 == SIZES[kind]


@pytest.mark.parametrize("kind", [kind for kind in LIBRARY_KINDS if kind not in ("fairseq", *TRAINED_KINDS)])
def test_only_the_order_of_special_tokens_differs_from_the_librarys(kind):
    tokenizer = make(kind)
    assert sorted(tokenizer.exported_ids) == list(range(tokenizer.mask + 1))
    ordinary = tokenizer.exported_ids[len(SPECIALS) : -1]
    assert (np.diff(ordinary) > 0).all()
    assert [tokenizer.token(index) for index in (0, 1, 2, 3, tokenizer.mask)] == (
        ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"] if kind == "bert" else [*SPECIALS, MASK]
    )


def test_special_tokens_that_a_file_lacks_are_added_behind_its_own():
    tokenizer, library = make("gpt2"), given_library("gpt2")
    completed = tokenizers.Tokenizer.from_str(tokenizer.files["tokenizer.json"].decode())
    assert completed.get_vocab_size() == library.get_vocab_size() + len(SPECIALS) + 1
    assert completed.get_vocab().items() >= library.get_vocab().items()


def test_special_tokens_that_were_added_to_a_model_keep_their_names():
    library = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    library.add_special_tokens(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"])
    tokenizer = HuggingFaceTokenizer("given/tokenizer.json", library.to_str().encode())
    names = [tokenizer.token(index) for index in (*range(len(SPECIALS)), tokenizer.mask)]
    assert names == ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    assert sorted(tokenizer.exported_ids) == list(range(library.get_vocab_size()))


def test_ids_of_gpt2_are_those_of_fairseqs_encoder(tmp_path):
    directory = write(tmp_path / "data", "fairseq")
    theirs = get_encoder(str(directory / "encoder.json"), str(directory / "vocab.bpe"))
    dictionary, ours = Dictionary.load(str(directory / "dict.txt")), open_tokenizer_path(directory)
    assert isinstance(ours, FairseqBPETokenizer)
    for line in (*paragraphs(200, seed=1), *HOSTILE):
        ids = dictionary.encode_line(" ".join(map(str, theirs.encode(line))), add_if_not_exist=False).tolist()
        assert ours.encode_lines([line])[0].tolist() == ids[:-1]
        assert ours.decode(ids) == theirs.decode(theirs.encode(line))


def test_tokens_that_fairseqs_dictionary_lacks_become_unknown():
    files = fairseq_files(paragraphs(300), 300, missing=200)
    tokenizer = FairseqBPETokenizer("encoder.json", *files)
    encoder = json.loads(files[0])
    lacking = [token for token in encoder if str(encoder[token]) not in tokenizer.symbols and len(token) == 1]
    assert tokenizer.encode_lines([lacking[0]])[0].tolist() == [UNK]
    assert len(tokenizer.exported_ids) == len(tokenizer.symbols) + 1


def test_only_mask_is_special_in_text_with_masks(tokenizer):
    first, second = (tokenizer.encode_lines([text])[0].tolist() for text in ("the", " of"))
    assert tokenizer.encode_masked("the <mask> of") == [*first, tokenizer.mask, *second]
    assert tokenizer.encode_masked("the </s> of") == tokenizer.encode_lines(["the </s> of"])[0].tolist()
    assert tokenizer.decode(tokenizer.encode_masked("the <mask> of")).count(MASK) == 1
    assert tokenizer.decode([0, *first, 2, 1, 1]) == "the"


def test_lines_of_white_space_end_a_document(kind):
    """Byte-level BPE has tokens for white space."""
    _, sizes = make(kind).encode_block(["the", " ", "of", "\t\u00a0", ""])
    assert (sizes > 1).tolist() == [True, False, True, False, False]


def test_word_starts_and_texts_of_tokens(tokenizer):
    starts = tokenizer.word_starts()
    assert starts[[*range(len(SPECIALS)), tokenizer.mask]].all()
    [ids] = tokenizer.encode_lines(["that tokenizer is naïve that"])
    words = "".join(tokenizer.token_text(index) for index in ids).split()
    assert words in (["that", "tokenizer", "is", "naïve", "that"], ["that", "tokenizer", "is", "naive", "that"])
    assert starts[ids[1:]].sum() == 4  # the first word may have no mark


def from_model(model):
    return HuggingFaceTokenizer("given/tokenizer.json", tokenizers.Tokenizer(model).to_str().encode())


BYTES = {f"<0x{number:02X}>": number for number in range(256)}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (models.BPE({"a": 0}, []), "drops unknown characters"),
        (models.BPE({"a": 0}, [], byte_fallback=True), "drops unknown characters"),
        (models.BPE({"a": 0}, [], unk_token="<unk>"), "cannot encode unknown characters"),
        (models.WordLevel({"a": 0}, unk_token="[UNK]"), "cannot encode unknown characters"),
        (models.WordPiece({"a": 0}, unk_token="[UNK]"), "cannot encode unknown characters"),
        (models.Unigram([("a", -1.0)]), "cannot encode unknown characters"),
    ],
)
def test_tokenizers_that_do_not_encode_unknown_characters_are_refused(model, reason):
    with refused(rf"^given/tokenizer\.json: {reason}"):
        from_model(model)


def from_bytes(lacking, **options):
    """Return a byte-level BPE that lacks some of the bytes."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(lacking))
    vocabulary = {token: index for index, token in enumerate(["<|end|>", *alphabet])}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [], **options))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return HuggingFaceTokenizer("given/tokenizer.json", library.to_str().encode())


def test_byte_level_bpe_must_have_the_bytes_that_a_text_can_have():
    """Bytes that UTF-8 never has may be missing."""
    assert from_bytes("ÀÁõö÷øùúûüýþÿ").unknown_ids == (UNK,)
    with refused(r"json: drops unknown characters"):
        from_bytes("ÿð")
    tokens, _ = (tokenizer := from_bytes("ð", unk_token="<|end|>")).encode_block(["a😀"])
    assert np.isin(tokens, tokenizer.unknown_ids).tolist() == [False, True, False, False, False, False]
    assert tokenizer.unknown_texts(["a😀"]) == {"😀": 1}


def test_characters_that_become_bytes_are_not_unknown():
    tokenizer = from_model(models.BPE(BYTES, [], byte_fallback=True))
    assert len(tokenizer.encode_lines(["é"])[0]) == 2
    assert not tokenizer.unknown_texts(["é"])


def test_word_starts_that_a_normalizer_marks():
    """As in the files of Llama."""
    library = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, [("▁", "a")], unk_token="<unk>"))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = HuggingFaceTokenizer("given/tokenizer.json", library.to_str().encode())
    first, second = tokenizer.encode_lines(["aa"])[0]
    assert (tokenizer.token_text(first), tokenizer.token_text(second)) == (" a", "a")
    assert tokenizer.word_starts()[[first, second]].tolist() == [True, False]
    assert [ids.tolist() for ids in tokenizer.encode_words(["aa"])] == [[first, second]]


@pytest.mark.parametrize("unknown", ["[UNK]", "<UNK>", "<|unk|>", "<unk>"])
def test_the_models_own_unknown_token_counts_as_unknown(unknown):
    """MPNet's vocabulary has ``<unk>``, and its model returns ``[UNK]``."""
    tokenizer = from_model(
        models.BPE({"<unk>": 0, "a": 1} | {unknown: 2 * (unknown != "<unk>")}, [], unk_token=unknown)
    )
    assert (tokenizer.encode_block(["aéa"])[0] == UNK).sum() == (unknown == "<unk>")
    assert tokenizer.unknown_texts(["aéa"]) == {"é": 1}


def test_texts_are_neither_truncated_nor_padded():
    """A tokenizer.json may say to truncate and to pad, as those of many models do: text would be lost."""
    library = given_library("bert")
    expected = HuggingFaceTokenizer("tokenizer.json", library.to_str().encode())
    library.enable_truncation(8)
    library.enable_padding(length=16)
    ours = HuggingFaceTokenizer("tokenizer.json", library.to_str().encode())
    short, long = "the of", "the of and to " * 20
    for line, other in zip(ours.encode_lines([short, long]), expected.encode_lines([short, long]), strict=True):
        assert line.tolist() == other.tolist()
    assert ours.encode_masked(long) == expected.encode_masked(long)
    for array, other in zip(ours.encode_with_offsets(long), expected.encode_with_offsets(long), strict=True):
        assert np.array_equal(array, other)
    words = ["theofand" * 10]
    assert ours.encode_words(words)[0].tolist() == expected.encode_words(words)[0].tolist()


def test_dropout_is_for_training_only():
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<unk>": 3}
    tokenizer = from_model(models.BPE(vocabulary, [("a", "b")], dropout=1.0, unk_token="<unk>"))
    assert len(tokenizer.encode_lines(["ab"])[0]) == 1


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_files_and_pickles_hold_the_tokenizer(kind, tmp_path):
    tokenizer, lines = make(kind), paragraphs(5, seed=2)
    for other in (pickle.loads(pickle.dumps(tokenizer)), find_tokenizer(write(tmp_path / "data", kind))):
        assert type(other) is type(tokenizer)
        assert (other.fingerprint, other.symbols) == (tokenizer.fingerprint, tokenizer.symbols)
        assert all(map(np.array_equal, other.encode_lines(lines), tokenizer.encode_lines(lines)))


def test_a_hugging_face_directory_without_tokenizer_json(tmp_path):
    from transformers import BertTokenizerFast

    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##m"])}
    BertTokenizerFast(vocab=words).save_pretrained(tmp_path)
    expected = open_tokenizer_path(tmp_path).symbols
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    assert open_tokenizer_path(tmp_path).symbols == expected == [*SPECIALS, "the", "##m"]


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_training_twice_gives_the_same_files(kind):
    size = len(make(kind).pieces) + 3
    assert train_tokenizer(kind, iter(paragraphs(300)), size, 1.0).files == make(kind).files


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_a_failure_to_read_the_text_ends_training(kind):
    def lines():
        yield from paragraphs(300)
        raise KeyboardInterrupt("stop")

    with pytest.raises(KeyboardInterrupt, match="stop"):
        train_tokenizer(kind, lines(), SIZES[kind], 1.0)


@pytest.mark.parametrize(
    ("kind", "size", "reason"),
    [
        ("byte-bpe", 200, "--vocab-size 200: byte-level BPE has at least 259 subwords"),
        ("byte-bpe", 9999, r"--vocab-size 9999: .* makes \d+ of this text"),
        ("sentencepiece-unigram", 9999, r"--vocab-size 9999: .*Please set it to a value <= \d+"),
    ],
)
def test_sizes_that_do_not_fit_the_text_are_refused(kind, size, reason):
    with refused(reason):
        train_tokenizer(kind, paragraphs(50), size, 1.0)


DAMAGED = {
    "tokenizer.json: not a tokenizer of Hugging Face": {"tokenizer.json": b"{}"},
    "tokenizer.json: not a tokenizer of Hugging Face, or damaged": {"tokenizer.json": b"\xff"},
    "encoder.json: does not belong to .*dict.txt": {"dict.txt": b"w0 1\nw1 1\n"},
    "encoder.json is damaged": {"encoder.json": b"{"},
    "vocab.bpe: not the merges": {"vocab.bpe": b"q q\n"},
    "vocab.bpe: No such file": {"vocab.bpe": None},
    "has no tokenizer": {"encoder.json": None, "vocab.bpe": None},
}
"""Changes of a directory with GPT-2's files by the expected error message; None for a file that is missing."""


@pytest.fixture(scope="module")
def backtracking(tmp_path_factory):
    """Return a tokenizer whose regex backtracks until the library panics, which is no ``Exception``."""
    library = tokenizers.Tokenizer.from_str(make("bpe").files["tokenizer.json"].decode())
    endless = tokenizers.Regex("(x+x+)+y")
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(endless, "isolated"), library.pre_tokenizer])
    library.decoder = tokenizers.decoders.Sequence([library.decoder, tokenizers.decoders.Replace(endless, "")])
    library.normalizer = normalizers.Replace(endless, "")
    path = tmp_path_factory.mktemp("backtracking") / "tokenizer.json"
    path.write_text(library.to_str())
    return HuggingFaceTokenizer(path)


@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer, text: tokenizer.encode_lines([text]),
        lambda tokenizer, text: tokenizer.encode_block([text]),
        lambda tokenizer, text: tokenizer.encode_words([text]),
        lambda tokenizer, text: tokenizer.encode_with_offsets(text),
        lambda tokenizer, text: tokenizer.encode_masked(text),
        lambda tokenizer, text: tokenizer.normalize(text),
        lambda tokenizer, text: tokenizer.unknown_texts([text]),
        lambda tokenizer, text: tokenizer.decode([tokenizer.symbols.index("x")] * len(text)),
    ],
    ids=["lines", "block", "words", "offsets", "masked", "normalize", "unknown", "decode"],
)
def test_a_panic_of_the_library_is_an_error_that_names_the_file(backtracking, encode):
    with refused(r"tokenizer\.json"):
        encode(backtracking, "x" * 40)


def test_tokens_of_white_space_are_codes_in_the_dictionary(tmp_path):
    """ModernBERT's tokenizer has tokens for several spaces."""
    library = make("gpt2").library
    spaces = json.loads(library.to_str())
    added = {**spaces["added_tokens"][-1], "id": library.get_vocab_size(), "content": "    ", "special": False}
    spaces["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spaces))
    tokenizer = open_tokenizer_path(tmp_path / "tokenizer.json")
    write_symbols(tokenizer.symbols, tmp_path / "dict.txt")
    assert read_symbols(tmp_path / "dict.txt")[:-1] == tuple(tokenizer.symbols)
    index = tokenizer.symbols.index("\\u0020" * 4)
    [ids] = tokenizer.encode_lines(["the    of"])
    assert index in ids
    assert tokenizer.decode(ids) == "the    of"


@pytest.mark.parametrize("reason", DAMAGED)
def test_damaged_files_are_refused(tmp_path, reason):
    files = dict(zip(FairseqBPETokenizer.FILES, fairseq_files(paragraphs(50), 280), strict=True))
    if "tokenizer.json" in reason:
        files = {}
    for name, content in (files | DAMAGED[reason]).items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with refused(reason):
        open_tokenizer_path(tmp_path)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("configured", [{}, {"do_lower_case": False}, {"do_lower_case": True}, {"strip_accents": True}])
def test_a_directory_of_transformers_has_its_ids(tmp_path, lower, accents, configured):
    """``tokenizer_config.json`` changes what ``tokenizer.json`` does."""
    names = [*["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Hello", "hello", "É", "é", "E", "e", "world"]]
    library = tokenizers.Tokenizer(models.WordPiece(dict(zip(names, range(12), strict=False)), unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(names[:5])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **configured}))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer_path(tmp_path)
    for line in ("Hello world", "É é E e", "hello É"):
        theirs = fast(line, add_special_tokens=False).input_ids
        assert ours.exported_ids[ours.encode_lines([line])[0]].tolist() == theirs
