"""sentencepiece models shared by the tests of this directory."""

import random

import pytest

from tests.support.exports import train_sentencepiece
from tests.support.families import copy_of, imported, stock  # noqa: F401  fixtures

ALPHABETS = ("abcdefghijklmnoprstuvwyz", "aeiouäöüßéèñçø", "αβγδεζηθικλμ", "абвгдежзиклм", "東京日本語中文字漢")
PUNCTUATION = (".", ",", "?", "!", ";", ":", " –", "…", "'s")  # noqa: RUF001


@pytest.fixture(scope="session")
def lines() -> list[str]:
    """Return sentences of synthetic words in several scripts, some with numbers, capitals, diacritics and symbols."""
    generator = random.Random(0)
    words = [
        "".join(generator.choices(alphabet, k=generator.randint(1, 8))) for alphabet in ALPHABETS for _ in range(60)
    ]
    return [_sentence(generator, words) for _ in range(600)]


def _sentence(generator: random.Random, words: list[str]) -> str:
    chosen = generator.choices(words, k=generator.randint(3, 25))
    for _ in range(2):
        place = generator.randrange(len(chosen))
        chosen[place] = generator.choice(
            [str(generator.randrange(3000)), chosen[place].capitalize(), f"({chosen[place]})", "“cafe\u0301”", "½"]
        )
    return " ".join(chosen) + generator.choice(PUNCTUATION)


@pytest.fixture(scope="session", params=[("bpe", False), ("bpe", True), ("unigram", False), ("unigram", True)], ids=str)
def any_model(request, lines) -> bytes:
    """Return a serialized model of each of the four kinds."""
    kind, byte_fallback = request.param
    return train_sentencepiece(lines[:300], kind, byte_fallback)


@pytest.fixture(scope="session")
def model(lines) -> bytes:
    """Return a serialized BPE model, as prepare.py trains it."""
    return train_sentencepiece(lines[:300])
