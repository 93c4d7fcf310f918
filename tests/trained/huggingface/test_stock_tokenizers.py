"""Tokenizers of the stock classes of ``transformers``: ours and exported ones give the same ids and offsets."""

import functools
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from mae_lm_fairseq.text.comparison_texts import texts_for
from mae_lm_fairseq.text.hugging_face_tokenizer import HuggingFaceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, UNK, Tokenizer as OurTokenizer
from mae_lm_fairseq.text.tokenizer_files import as_loaded, find_tokenizer, load_from_transformers, open_tokenizer_path
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_tokenizer, read_lists_of_words
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.original import STOCK_FILES
from mae_lm_fairseq.wrapped.encoder import KINDS as WRAPPED
from tests.support.exports import train_sentencepiece
from tests.support.families import change_json
from tests.support.refusals import refused
from tests.support.tokenizers import given, make, paragraphs
from tests.support.wrapped import stock as stock_model

ROLES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_ROLES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def pieces(kind: str, first: tuple[str, ...]):
    """Return vocabulary, and merges or None, of a small model that has some tokens first."""
    model = json.loads(given(kind).to_str())["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        return [(token, 0.0) for token in first] + [tuple(piece) for piece in vocabulary if piece[0] not in first], None
    names = dict.fromkeys([*first, *sorted(vocabulary, key=vocabulary.get)])
    return {token: index for index, token in enumerate(names)}, [tuple(pair) for pair in model.get("merges", ())]


def wordpiece(name: str = "Bert", first: tuple[str, ...] = BERT_ROLES, **options):
    return getattr(transformers, f"{name}Tokenizer")(vocab=pieces("bert", first)[0], **options)


def byte_bpe(name: str, first: tuple[str, ...] = ROLES, **options):
    vocabulary, merges = pieces("gpt2", first)
    return getattr(transformers, f"{name}Tokenizer")(vocab=vocabulary, merges=merges, **options)


def unigram(name: str, first: tuple[str, ...] = ROLES, **options):
    return getattr(transformers, f"{name}Tokenizer")(vocab=pieces("unigram", first)[0], **options)


def byte_fallback(name: str | None, first: tuple[str, ...]):
    """Return one of Llama's or Gemma's class, or, without a name, as Llama's older files describe it."""
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = [*first, *(f"<0x{byte:02X}>" for byte in range(256))]
    library.train_from_iterator(
        paragraphs(300), trainers.BpeTrainer(special_tokens=special, show_progress=False, vocab_size=420)
    )
    model = json.loads(library.to_str())["model"]
    if name:
        merges = [tuple(pair) for pair in model["merges"]]
        return getattr(transformers, f"{name}Tokenizer")(vocab=model["vocab"], merges=merges)
    described = json.loads(library.to_str()) | {"pre_tokenizer": None}
    described["added_tokens"] = described["added_tokens"][: len(first)]
    library = Tokenizer.from_str(json.dumps(described))
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return fast_of(library, ROLES)


def fast_of(library, roles: tuple[str, ...], **options):
    bos, pad, eos, unk, mask = roles
    library.add_special_tokens([*roles[:-1], AddedToken(mask, lstrip=True, special=True, normalized=False)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, bos_token=bos, cls_token=bos, pad_token=pad, eos_token=eos, sep_token=eos,
        unk_token=unk, mask_token=AddedToken(mask, lstrip=True, special=True, normalized=False), **options
    )  # fmt: skip


def modern_bert():
    """Return a tokenizer as ModernBERT's: offsets include the space before a word."""
    library, roles = given("gpt2"), ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
    library.normalizer = normalizers.NFC()
    library.add_special_tokens(list(roles))
    first, last = (library.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", first), ("[SEP]", last)]
    )
    return fast_of(library, roles)


def byte_unigram():
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.UnigramTrainer(
        special_tokens=list(ROLES), unk_token="<unk>", show_progress=False, vocab_size=400, initial_alphabet=alphabet
    )
    library.train_from_iterator(paragraphs(300), trainer)
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return fast_of(library, ROLES)


KINDS = {
    "BERT, uncased": ("bert", wordpiece),
    "BERT, cased": ("bert", lambda: wordpiece(do_lower_case=False)),
    "BERT, accents kept": ("bert", lambda: wordpiece(strip_accents=False)),
    "DistilBERT": ("distilbert", lambda: wordpiece("DistilBert")),
    "Electra": ("electra", lambda: wordpiece("Electra")),
    "MPNet": ("mpnet", lambda: wordpiece("MPNet", (*ROLES, "[UNK]"))),
    "RoBERTa": ("roberta", lambda: byte_bpe("Roberta")),
    "RoBERTa, prefix space": ("roberta", lambda: byte_bpe("Roberta", add_prefix_space=True)),
    "RoBERTa, offsets with spaces": ("roberta", lambda: byte_bpe("Roberta", trim_offsets=False)),
    "DeBERTa": ("deberta", lambda: byte_bpe("Deberta", BERT_ROLES)),
    "GPT-2": ("gpt2", lambda: byte_bpe("GPT2", ())),
    "GPT-NeoX": ("gpt_neox", lambda: byte_bpe("GPTNeoX", ("<|padding|>",))),
    "ModernBERT": ("modernbert", modern_bert),
    "Qwen 2": ("qwen2", lambda: byte_bpe("Qwen2", ())),
    "ALBERT": ("albert", lambda: unigram("Albert", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))),
    "XLM-R": ("xlm-roberta", lambda: unigram("XLMRoberta")),
    "XLM-R, no prefix space": ("xlm-roberta", lambda: unigram("XLMRoberta", add_prefix_space=False)),
    "CamemBERT": ("camembert", lambda: unigram("Camembert")),
    "DeBERTa v2": ("deberta-v2", lambda: unigram("DebertaV2", BERT_ROLES)),
    "T5": ("t5", lambda: unigram("T5", ("<pad>", "</s>", "<unk>"))),
    "Llama": ("llama", lambda: byte_fallback("Llama", ("<unk>", "<s>", "</s>"))),
    "Llama, older files": ("llama", lambda: byte_fallback(None, ROLES)),
    "Gemma": ("gemma", lambda: byte_fallback("Gemma", ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"))),
    "byte-level Unigram": ("roberta", byte_unigram),
}
"""Types of models, and tokenizers of their stock classes."""
ADD_NO_SPACE = ("ModernBERT", "Qwen 2", "Gemma", "byte-level Unigram")
"""Kinds whose class encodes each of a list of words as if it continued the word before."""

ADDED = {
    "plain": [AddedToken("<ent>"), AddedToken("New"), AddedToken("[E1]", special=True)],
    "lstrip": [AddedToken("<ent>", lstrip=True), AddedToken("[E1]", lstrip=True, special=True)],
    "rstrip": [AddedToken("<ent>", rstrip=True), AddedToken("[E1]", rstrip=True, special=True)],
    "single word": [AddedToken("New", single_word=True), AddedToken("[E1]", single_word=True, special=True)],
    "normalized": [AddedToken("New", normalized=True), AddedToken("[E1]", normalized=True, special=True)],
    "not normalized": [AddedToken("New", normalized=False), AddedToken("[E1]", normalized=False, special=True)],
}
"""Tokens of users, and further special tokens."""
CASES = [
    *itertools.product(KINDS, ["plain"]),
    *itertools.product(["BERT, uncased", "RoBERTa", "GPT-2", "XLM-R", "Llama, older files"], list(ADDED)[1:]),
]
WORDS = (
    "the",
    "The",
    "of",
    "New",
    "new",
    "<ent>",
    "[E1]",
    "[e1]",
    "Łódź",
    "don't",
    "É",
    "e\u0301",
    "ﬁ",
    "日",
    "😀",
    "1,234.5",
)
SIGNS = ("\u200b", "▁", "Ġ", "##", ",", ".", "e", "\x07", "-")
GAPS = ("", "", " ", " ", "  ", "\t", "\u00a0", "\u3000")


@functools.cache
def directory_of(kind: str, added: str, root: Path) -> Path:
    """Return a directory that transformers has written."""
    family, build = KINDS[kind]
    fast, directory = build(), root / f"{kind}, {added}"
    user, special = ([token for token in ADDED[added] if token.special is wanted] for wanted in (False, True))
    fast.add_tokens(user)
    fast.add_tokens(special, special_tokens=True)
    fast.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": family}))
    return directory


class Tokenizers(NamedTuple):
    """A directory of transformers, the tokenizer that it loads from there, ours, and the one that we export."""

    directory: Path
    fast: transformers.PreTrainedTokenizerFast
    ours: OurTokenizer
    exported: transformers.PreTrainedTokenizerFast


@pytest.fixture(scope="module", params=CASES, ids=" + ".join)
def stock(request, tmp_path_factory) -> Tokenizers:
    directory = directory_of(*request.param, tmp_path_factory.getbasetemp() / "stock")
    ours = open_tokenizer_path(directory)
    return Tokenizers(directory, transformers.AutoTokenizer.from_pretrained(directory), ours, exported(ours))


def texts_of(name: str, gaps=GAPS, count: int = 80) -> list[str]:
    """Return reproducible texts of words and tokens beside, inside and after each other."""
    generator = random.Random(name)
    return [
        "".join(generator.choice(gaps) + generator.choice(WORDS + SIGNS) for _ in range(generator.randint(0, 8)))
        for _ in range(count)
    ]


def exported(ours: OurTokenizer):
    return exported_tokenizer(ours, (*ours.symbols, MASK), 64)


def test_ids_and_offsets_of_texts_are_the_stock_classs(stock, tmp_path):
    directory, fast, ours, again = stock
    ours.save(tmp_path)
    saved = find_tokenizer(tmp_path)
    bos, eos = ours.exported_ids[[BOS, EOS]]
    for text in ("", " the", "  the  of ", *texts_of(directory.name)):
        theirs = fast(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = ours.encode_with_offsets(text)
        assert ours.exported_ids[ids].tolist() == theirs["input_ids"], text
        assert list(map(tuple, offsets.tolist())) == theirs["offset_mapping"], text
        assert ours.encode_lines([text])[0].tolist() == ours.encode_masked(text) == ids.tolist()
        assert saved.encode_lines([text])[0].tolist() == ids.tolist()
        after_export = again(text, add_special_tokens=False, return_offsets_mapping=True)
        assert after_export["offset_mapping"] == theirs["offset_mapping"], text
        assert after_export["input_ids"] == theirs["input_ids"]
        assert again(text)["input_ids"] == [bos, *theirs["input_ids"], eos]
        shown = (tokenizer.decode(theirs["input_ids"], skip_special_tokens=True) for tokenizer in (fast, again))
        assert len(set(shown)) == 1


def test_masks_are_the_stock_classs(stock):
    directory, fast, ours, again = stock
    mask = fast.mask_token or again.mask_token
    for text in texts_of(directory.name, (*GAPS, MASK, f" {MASK} ", f"{MASK} ")):
        with_mask, ids = text.replace(MASK, mask), ours.exported_ids[ours.encode_masked(text)].tolist()
        assert again(with_mask, add_special_tokens=False)["input_ids"] == ids
        assert not fast.mask_token or fast(with_mask, add_special_tokens=False)["input_ids"] == ids


def test_lists_of_words_are_the_stock_classs(stock, tmp_path):
    """Where its class has a setting for lists of words, it is on."""
    directory, _, ours, again = stock
    again.save_pretrained(tmp_path)
    read_lists_of_words(ours, tmp_path)
    classes = [transformers.AutoTokenizer.from_pretrained(tmp_path)]
    if not directory.name.startswith(ADD_NO_SPACE):
        classes.append(transformers.AutoTokenizer.from_pretrained(directory, add_prefix_space=True))
    texts = [*texts_for(ours), *texts_of(directory.name, ("", "", " "))]
    words = list(dict.fromkeys(word for text in texts for word in text.split()))
    for word, ids in zip(words, ours.encode_words(words), strict=True):
        options = {"is_split_into_words": True, "add_special_tokens": False, "return_offsets_mapping": True}
        first, *others = (fast([word], **options, verbose=False) for fast in classes)
        assert ours.exported_ids[ids].tolist() == (first["input_ids"] or [ours.exported_ids[UNK]]), word
        for other in others:
            assert (other["input_ids"], other["offset_mapping"]) == (first["input_ids"], first["offset_mapping"]), word


@pytest.mark.parametrize("kind", ["byte-bpe", "fairseq"])
def test_offsets_of_our_own_byte_level_bpe_are_robertas(kind):
    fast = exported(make(kind))
    model = json.loads(fast.backend_tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    roberta = transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)
    for text in (" the", *texts_of(kind)):
        ours, theirs = (
            encode(text, add_special_tokens=False, return_offsets_mapping=True) for encode in (fast, roberta)
        )
        assert (ours["input_ids"], ours["offset_mapping"]) == (theirs["input_ids"], theirs["offset_mapping"]), text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "XLM-R, no prefix space"])
def test_ordinary_words_are_those_of_a_text(kind, tmp_path_factory):
    """Without its setting, XLM-R drops the spaces of a text."""
    ours = open_tokenizer_path(directory_of(kind, "plain", tmp_path_factory.getbasetemp() / "stock"))
    words = ["the", "of", "don't", "1,234.5", "Łódź"]
    in_text = ours.encode_lines(["tokenizer, " + " ".join(words)])[0].tolist()
    assert [*ours.encode_lines(["tokenizer,"])[0], *(i for ids in ours.encode_words(words) for i in ids)] == in_text


def test_the_comparison_names_a_text_on_which_a_tokenizer_differs(roberta, monkeypatch):
    encode = HuggingFaceTokenizer.encode_masked
    monkeypatch.setattr(HuggingFaceTokenizer, "encode_masked", lambda self, text: encode(self, text.replace(" ", "")))
    with refused("RoBERTa: .*'the <mask> of'"):
        open_tokenizer_path(roberta)


@pytest.fixture
def roberta(tmp_path_factory, tmp_path) -> Path:
    """Return a copy of one of these directories, which a test may change."""
    source = directory_of("RoBERTa", "plain", tmp_path_factory.getbasetemp() / "stock")
    return shutil.copytree(source, tmp_path / "RoBERTa")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"split_special_tokens": True}, r"tokenizer_config\.json: split_special_tokens is true"),
        ({"mask_token": "<blank>"}, r"its mask token is '<blank>'; only <mask> and \[MASK\] are supported"),
    ],
)
def test_settings_that_change_ids_are_refused_by_name(changes, reason, roberta):
    change_json(roberta / "tokenizer_config.json", **changes)
    with refused(reason):
        open_tokenizer_path(roberta)


def test_files_of_special_tokens_alone_are_read(roberta):
    change_json(roberta / "special_tokens_map.json", additional_special_tokens=["[E9]"])
    for name in ("config.json", "tokenizer_config.json"):
        (roberta / name).unlink()
    ids = open_tokenizer_path(roberta).encode_lines(["a [E9]"])[0]
    assert len(ids) == len(transformers.AutoTokenizer.from_pretrained(roberta).tokenize("a [E9]")) == 3


@pytest.mark.parametrize("lstrip", [False, True])
def test_a_mask_that_is_an_ordinary_token_keeps_its_spaces(lstrip, tmp_path):
    library = given("gpt2")
    library.add_tokens([AddedToken(MASK, lstrip=lstrip)])
    library.save(str(tmp_path / "tokenizer.json"))
    ours = open_tokenizer_path(tmp_path / "tokenizer.json")
    theirs = library.encode("the <mask>").ids
    assert ours.exported_ids[ours.encode_masked("the <mask>")].tolist() == theirs
    assert exported(ours)("the <mask>", add_special_tokens=False)["input_ids"] == theirs


def test_python_tokenizers_are_refused(tmp_path):
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with refused(r"tokenizer\.json"):
        open_tokenizer_path(tmp_path)


@pytest.mark.parametrize("family", sorted({*FAMILIES, *WRAPPED}))
def test_every_file_of_a_tokenizer_is_kept(family):
    """DeBERTa v3 is released with spm.model, and without tokenizer.json."""
    tokenizer_class = TOKENIZER_MAPPING[transformers.AutoConfig.for_model(family).__class__]
    assert set(tokenizer_class.vocab_files_names.values()) <= set(STOCK_FILES)


def test_a_sentencepiece_file_alone_is_exported(tmp_path):
    released, bundle = tmp_path / "released", tmp_path / "bundle"
    stock_model("deberta-v2", pad=0).save_pretrained(released)
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    ids = {f"{role}_id": number for number, role in enumerate(names)}
    pieces_of = {f"{role}_piece": name for role, name in names.items()}
    model = train_sentencepiece(paragraphs(300), "unigram", vocab_size=90, **ids, **pieces_of)
    (released / "spm.model").write_bytes(model)
    (released / "tokenizer_config.json").write_text('{"vocab_type": "spm"}')
    write_bundle(import_foreign(released, "mae_lm_roberta"), bundle)
    export_stock(open_pretrained(bundle), tmp_path / "out")
    assert (tmp_path / "out/spm.model").read_bytes() == model


def test_same_subwords_in_another_order_are_another_text(tmp_path, monkeypatch):
    """The order counts, but for unigram models, to which two splits may be equally probable."""
    wordpiece().save_pretrained(tmp_path)
    loaded = load_from_transformers(tmp_path)
    assert as_loaded(loaded, tmp_path).symbols
    encode = type(loaded).__call__

    def encode_backwards(self, *texts, **options):
        encoding = encode(self, *texts, **options)
        encoding["input_ids"].reverse()
        return encoding

    monkeypatch.setattr(type(loaded), "__call__", encode_backwards)
    with refused(tmp_path.name):
        as_loaded(loaded, tmp_path)
