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
    # Invisible: white space, control characters, joiners, a BOM, and sentencepiece's mark of a word's start.
    visible = np.array(
        [not (x.isspace() or x == WORD_START or unicodedata.category(x) in ("Cc", "Cf")) for x in text], dtype=bool
    )
    # int64[characters + 1]: the next visible character, and one past the previous visible character.
    next_visible = np.append(np.where(visible, np.arange(len(text)), len(text)), len(text))
    next_visible = np.minimum.accumulate(next_visible[::-1])[::-1]
    last_visible = np.maximum.accumulate(np.append(0, np.where(visible, np.arange(1, len(text) + 1), 0)))
    begins, ends = next_visible[spans[:, 0]], last_visible[spans[:, 1]]
    # A token without visible characters shares the span of the next token that has some.
    own = begins < ends
    index = np.arange(len(ids))
    owner = np.minimum.accumulate(np.where(own, index, len(ids))[::-1])[::-1]
    shared = owner < len(ids)
    begins[~shared] = ends[~shared] = last_visible[-1]
    begins[shared], ends[shared] = begins[owner[shared]], ends[owner[shared]]
    return ids, np.stack([begins, ends], axis=1)


def word_numbers(text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the number of the word in which each token starts; words are separated by white space.

    Args:
        spans: start and end of each token in characters, with or without the white space before it.
    """
    is_blank = np.array([True, *map(str.isspace, text), True])
    starts = is_blank[:-1] & ~is_blank[1:]
    words = np.cumsum(starts) - 1
    # White space belongs to the word that follows it, or to the last one.
    return [int(min(words[start] + is_blank[start + 1], words[-1])) for start, _ in spans]


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
    return {"L": "w", "N": "w", "M": "m"}.get(category[0], "m" if category == "Cf" else "p")
