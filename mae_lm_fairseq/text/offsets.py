"""Spans of a text: those that tokens stand for, and those of its words.

Tokenizers may normalise text before they split it (sentencepiece: NFKC, white space, control characters), so joined
tokens differ from the text. They do return the characters of the original that each token was made of.
"""

import re
import unicodedata
from collections.abc import Iterable

import numpy as np

from mae_lm_fairseq.text.sentencepiece_tokenizer import WORD_START
from mae_lm_fairseq.text.tokenizer import Tokenizer

# One class per character: w letter or digit, m mark or format character, j joiner inside of words, s space, p other.
_WORD = re.compile(r"m*w[wm]*(?:jw[wm]*)*|[jp]m*|m+")
_JOINERS = ".,'\u2019-_"


def encode_with_spans(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Encode a text, and return the characters that each token stands for.

    A token's span is the characters that it was made of, without surrounding white space. All tokens of one character,
    such as the bytes of an emoji or ``1``, the fraction slash and ``2`` of a half sign, have that character as their
    span. A token that is only a word start has the span of the next token. A slice of ``text`` from the start of one
    token to the end of the same or a later one begins and ends with visible characters; it is empty only after the last
    visible character.

    Args:
        text: any text that UTF-8 can represent.

    Returns:
        ids: int32[tokens], fairseq's ids.
        spans: int64[tokens, 2], start and end of each token in ``text``, in characters; both ascending.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    is_visible = np.array(list(map(_is_visible, text)), dtype=bool)
    # int64[characters + 1]: the next visible character, and one past the previous visible character.
    next_visible = _next(is_visible)
    ends_of_visible = np.where(is_visible, np.arange(1, len(text) + 1), 0)
    last_visible = np.maximum.accumulate(np.append(0, ends_of_visible))
    begins = next_visible[spans[:, 0]]
    ends = last_visible[spans[:, 1]]

    # A token without visible characters shares the span of the next token that has some.
    owners = _next(begins < ends)[:-1]
    begins = np.append(begins, last_visible[-1])[owners]
    ends = np.append(ends, last_visible[-1])[owners]
    return ids, np.stack([begins, ends], axis=1)


def _is_visible(character: str) -> bool:
    """Return False for white space, control characters, joiners, a BOM, and sentencepiece's mark of a word's start."""
    is_blank = character.isspace() or character == WORD_START
    return not is_blank and unicodedata.category(character) not in ("Cc", "Cf")


def _next(is_sought: np.ndarray) -> np.ndarray:
    """Return int64[N + 1]: the first sought position of N at or after each one, and N behind the last one."""
    count = len(is_sought)
    positions = np.append(np.where(is_sought, np.arange(count), count), count)
    return np.minimum.accumulate(positions[::-1])[::-1]


def word_numbers(text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the number of the word in which each token starts; words are separated by white space.

    Args:
        spans: start and end of each token in characters, with or without the white space before it.
    """
    is_blank = np.array([True, *map(str.isspace, text), True])
    starts = is_blank[:-1] & ~is_blank[1:]
    words = np.cumsum(starts) - 1
    # White space belongs to the word that follows it, or to the last one.
    numbers = np.minimum(words + is_blank[1:], words[-1])
    return [int(numbers[start]) for start, _ in spans]


def split_words(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word of a text.

    White space separates words. Punctuation marks and symbols are words of their own, except for a single ``. , ' - _``
    between letters or digits, as in ``don't``, ``e-mail``, ``U.S`` and ``1,000.50``.
    """
    return [match.span() for match in _WORD.finditer("".join(map(_class_of, text)))]


def _class_of(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category == "Cc":
        return "s"
    if character in _JOINERS:
        return "j"
    if category == "Cf":
        return "m"
    return {"L": "w", "N": "w", "M": "m"}.get(category[0], "p")
