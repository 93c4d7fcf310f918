"""Text for tokenizers, and small tokenizers of every kind."""

import functools
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.hugging_face_tokenizer import FairseqBPETokenizer, HuggingFaceTokenizer
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_training import TRAINED_KINDS, train_tokenizer

_TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which
tokenizer Straße naïve café 1,234.5 U.S. don't it's “quoted” (maybe) e-mail über Łódź language models masked
"""

HOSTILE = (
    "e\u0301 q\u0323\u0307\u0323 \u1112\u1161\u11ab",
    "😀 👩\u200d👩\u200d👧 🇩🇪 ☕\ufe0f",
    "שלום עולם مرحبا بالعالم",
    "a\x00b \x00 \x07",
    "<s> the </s> <mask> <unk> <pad>is <mask>a [MASK] [CLS] <|endoftext|>",
    "  the   of ",
    "\t the\tof\u00a0and\u3000to\u200bin\ufeff",
    "",
    "   ",
    "½ ﬁ ① ² ﷺ",
    "東京は日本の首都です。",
    "▁a ▁ Ġb ##c @@",
)
"""Strings that tokenizers may mishandle."""
LONG = "x" * 1_000_000
"""A megabyte without a space."""

GIVEN_KINDS = ("bert", "roberta", "gpt2", "unigram", "fairseq")
"""Kinds of existing tokenizers."""
ALL_KINDS = (*TRAINED_KINDS, *GIVEN_KINDS)
SIZES = dict(zip(TRAINED_KINDS, (120, 90, 320), strict=True))
"""Vocabulary sizes of tokenizers trained on :func:`paragraphs`."""


def paragraphs(count: int, seed: int = 0) -> list[str]:
    """Return reproducible lines of text."""
    generator, words = random.Random(seed), _TEXT.split()
    return [" ".join(generator.choices(words, k=generator.randint(3, 20))) + "." for _ in range(count)]


@functools.cache
def make(kind: str) -> Tokenizer:
    """Return a small tokenizer of a kind."""
    if kind in TRAINED_KINDS:
        return train_tokenizer(kind, paragraphs(300), SIZES[kind], 1.0)
    if kind == "fairseq":
        encoder, merges, dictionary = fairseq_files(paragraphs(300), 300)
        return FairseqBPETokenizer("given/encoder.json", encoder, merges, dictionary)
    return HuggingFaceTokenizer("given/tokenizer.json", given(kind).to_str().encode())


def given(kind: str) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that was not made by this package."""
    if kind == "bert":
        tokenizer = trained("wordpiece", ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], 320)
    elif kind == "unigram":
        tokenizer = trained("unigram", ["<pad>", "</s>", "<unk>"], 120)
    else:
        mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
        names = ["<s>", "<pad>", "</s>", "<unk>", mask] if kind == "roberta" else ["<|endoftext|>"]
        tokenizer = trained("byte-level BPE", names, 320)
    described = json.loads(tokenizer.to_str())
    # BERT's is a token of the vocabulary, which its pre-tokenizer never leaves whole.
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] != "[unused0]"]
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def trained(algorithm: str, specials: list, size: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that some special tokens come first in, trained on :func:`paragraphs`."""
    options = {"special_tokens": specials, "vocab_size": size, "show_progress": False}
    if algorithm == "wordpiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**options)
    elif algorithm == "unigram":
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer.train_from_iterator(paragraphs(300), trainer)
    return tokenizer


def fairseq_files(lines: list[str], size: int, missing: int = 0) -> tuple[bytes, bytes, bytes]:
    """Return ``encoder.json``, ``vocab.bpe`` and ``dict.txt`` as those of GPT-2 and fairseq's RoBERTa.

    Args:
        lines: text to train on.
        size: number of tokens.
        missing: number of tokens that ``dict.txt`` lacks.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    encoder = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""])
    # In an order of its own, by frequency in GPT-2's case.
    numbers = random.Random(0).sample(list(encoder.values()), len(encoder) - missing)
    dictionary = "".join(f"{number} 1\n" for number in numbers) + "madeupword0000 0\n"
    return json.dumps(encoder).encode(), merges.encode(), dictionary.encode()


def write_sentencepiece(directory: Path, lines: list[str], pieces: int) -> Path:
    """Write a data-bin that holds only a sentencepiece model trained on some lines, and its dictionary."""
    directory.mkdir(parents=True)
    path = directory / TOKENIZER
    path.write_bytes(train_model(lines, pieces, 1.0))
    write_symbols(SentencePieceTokenizer(path).symbols, directory / DICTIONARY)
    return directory


def write(directory: Path, kind: str) -> Path:
    """Write the tokenizer and the dictionary of a data-bin."""
    directory.mkdir(parents=True, exist_ok=True)
    make(kind).save(directory)
    write_symbols(make(kind).symbols, directory / DICTIONARY)
    return directory
