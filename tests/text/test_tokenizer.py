import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary
from hypothesis import given, strategies as st

from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.text.tokenizer import EOS, SPECIALS, UNK
from tests.support.refusals import refused
from tests.support.tokenizers import HOSTILE, LONG, make

SENTENCE = "a tokenizer “cuts” the text into pieces — it\u2019s what fairseq reads, line by line"
TEXT = [SENTENCE[i % 5 :: 1 + i % 3] for i in range(60)]


def train(path, lines=TEXT, **options):
    """Train a model with options that our training does not offer."""
    options = {"vocab_size": 60, "model_type": "bpe", "character_coverage": 1.0, "minloglevel": 2} | options
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=file, **options)
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.model"
    path.write_bytes(train_model(TEXT, 60, 1.0))
    return SentencePieceTokenizer(path)


@pytest.fixture(scope="module", params=["own", "t5", "no <s>", "bytes", "control", "unigram"])
def tokenizer(request, own, tmp_path_factory):
    if request.param == "own":
        return own
    options = {
        "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        "no <s>": {"bos_id": -1, "eos_id": -1, "unk_id": 0},
        "bytes": {"byte_fallback": True, "vocab_size": 320},
        "control": {"control_symbols": ["<sep>", "<mask>"], "user_defined_symbols": ["<url>"]},
        "unigram": {"model_type": "unigram", "vocab_size": 45},
    }[request.param]
    return SentencePieceTokenizer(train(tmp_path_factory.mktemp("given") / "given.model", **options))


@pytest.fixture(scope="module")
def dictionary(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("dict") / "dict.txt"
    write_symbols(tokenizer.symbols, path)
    return Dictionary.load(str(path))


def test_symbols_are_those_of_fairseqs_dictionary(tokenizer, dictionary):
    assert tokenizer.symbols == dictionary.symbols
    assert tuple(dictionary.symbols[:4]) == SPECIALS
    assert (dictionary.eos(), dictionary.unk()) == (EOS, UNK)


# Letters of the text, letters outside it, and characters that normalisation or line splitting might mishandle. U+0085
# has a test of its own below.
AWKWARD = "acehit“—\u2019▁<>s/ \t\r\x00\x07\x0b\x1c\xa0\xad\u200b\u2028\u3000\ufeffﬁ漢字é\u0301🙂"

ANYTHING = st.characters(codec="utf-8", exclude_characters="\n\x85")


@given(line=st.one_of(st.text(AWKWARD, max_size=20), st.text(ANYTHING)))
def test_encoding_is_what_pieces_and_fairseqs_dictionary_give(tokenizer, dictionary, line):
    model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))
    pieces = " ".join(model.encode(line, out_type=str))
    expected = dictionary.encode_line(pieces, add_if_not_exist=False).tolist()
    assert tokenizer.encode_lines([line])[0].tolist() == expected[:-1]
    tokens, sizes = tokenizer.encode_block([line])
    assert tokens.tolist() == expected
    assert sizes.tolist() == [len(expected)]


@pytest.mark.parametrize("kind", ["sentencepiece-bpe", "sentencepiece-unigram"])
def test_ids_and_text_are_the_librarys_on_hostile_strings(kind):
    tokenizer, lines = make(kind), [*HOSTILE, LONG]
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.files["sentencepiece.bpe.model"])
    for line, ids in zip(lines, tokenizer.encode_lines(lines), strict=True):
        theirs = model.encode(line)
        assert ids.tolist() == [index + 1 if index else UNK for index in theirs]
        assert tokenizer.decode(ids) == model.decode(theirs)


def test_white_space_that_survives_normalisation_is_unknown_not_lost(tmp_path):
    (tmp_path / "x.model").write_bytes(train_model(["one\x85two"] * 50, 12, 1.0))
    tokenizer = SentencePieceTokenizer(tmp_path / "x.model")
    assert (tokenizer.encode_block(["one\x85two"])[0] == UNK).sum() == 1
    assert tokenizer.unknown_texts(["one\x85two", "漢字 one"]) == {"": 1, "漢字": 1}


def test_a_block_holds_its_lines_one_after_the_other(own):
    lines = [TEXT[0], "", TEXT[1], "   ", ""]
    tokens, sizes = own.encode_block(lines)
    ends = np.cumsum(sizes)
    assert [part.tolist() for part in np.split(tokens, ends[:-1])] == [
        [*ids.tolist(), EOS] for ids in own.encode_lines(lines)
    ]
    assert sizes.tolist()[1] == sizes.tolist()[3] == sizes.tolist()[4] == 1


def test_the_dictionary_holds_the_counts(own, tmp_path):
    counts = np.arange(len(own.symbols))
    counts[7] = 0
    write_symbols(own.symbols, tmp_path / "dict.txt", counts)
    dictionary = Dictionary.load(str(tmp_path / "dict.txt"))
    assert dictionary.symbols == own.symbols
    assert dictionary.count[4:] == counts[4:].tolist()


@pytest.mark.parametrize("piece", ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a\u3000b"])
def test_models_with_pieces_that_the_dictionary_cannot_hold_are_refused(tmp_path, piece):
    specials = {"bos_piece": "<b>", "pad_piece": "<p>", "eos_piece": "<e>", "unk_piece": "<u>"}
    specials["normalization_rule_name"] = "identity"
    path = train(tmp_path / "bad.model", user_defined_symbols=[piece], **specials)
    with refused(r"bad\.model: dict\.txt"):
        SentencePieceTokenizer(path)


def test_a_file_that_is_no_complete_model_is_refused(tmp_path, own):
    model = own.path.read_bytes()
    for number, content in enumerate([b"", b"not a model", *(model[:cut] for cut in (20, len(model) // 2, -1))]):
        path = tmp_path / f"{number}.model"
        path.write_bytes(content)
        with refused("not a sentencepiece model"):
            SentencePieceTokenizer(path)


@pytest.mark.parametrize("gap", [" ", ""])
def test_long_lines_are_used_in_training(tmp_path, gap):
    lines = ["short", gap.join(["Ωμέγα"] * 3000)]
    (tmp_path / "x.model").write_bytes(train_model(lines, 20, 1.0))
    assert "Ωμέγα" in "".join(SentencePieceTokenizer(tmp_path / "x.model").pieces)
