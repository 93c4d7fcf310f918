"""Words of ordinary text, for models that label words."""

import re
import unicodedata

# One class per character: w letter or digit, m mark or format character, j joiner inside of words, s space, p other.
_WORD = re.compile(r"m*w[wm]*(?:jw[wm]*)*|[jp]m*|m+")
_JOINERS = ".,'\u2019-_"


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
