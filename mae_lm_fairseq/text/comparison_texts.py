"""Text on which tokenizers are compared: all that has made two of them differ."""

from collections.abc import Iterable, Sequence

from mae_lm_fairseq.text.hugging_face_tokenizer import HuggingFaceTokenizer
from mae_lm_fairseq.text.tokenizer import MASK, SPECIALS, Tokenizer

_ROLES = (*SPECIALS, MASK, "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
"""Special tokens that this package reads as ordinary text, unlike ``transformers``."""
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "On 14 July 1789, at 5:30 p.m., about 1,000 people (mostly from the suburbs) stood before the gate.",
    "Wait - what? \"No!\" she said; 'never again'... & then 50% of them left for $3.99 @ home_page #7.",
    "Die Straße führt über Köln nach Łódź; l'été, à Besançon, était très chaud — ¿y mañana?",
    "Η γλώσσα είναι ελληνική. Быстрая лиса прыгает. שלום עולם. مرحبا بالعالم.",  # noqa: RUF001
    "東京は日本の首都です。 我们今天去北京。 안녕하세요 세계.",
    "A cup of coffee ☕, a smile 😀 and ½ a cake ① for ﬁve people.",
    "  Spaces   in front,  between    and behind   ",
    "One.",
    "",
)
"""Sentences that every comparison includes: several scripts and lengths."""

WHAT_NORMALISERS_CHANGE = (
    "HELLO Hello hElLo; e\u0301 and \u00e9, \uff21 and A, \u0130stanbul.",
    "\ta\ttab,\u00a0no\u200bbreak\u3000and\u2028more\ufeff",
    "👩\u200d👩\u200d👧 🇩🇪 ☕\ufe0f",
    "Ġb ##c @@ a\x07b",
    "▁a ▁",
)
"""Text on which sentencepiece and its fast tokenizer may differ (``cards.toml``), and which others must agree on."""

WITH_MASKS = tuple(text.replace("_", MASK) for text in ("_", "the _ of", "the_of", "_.", "  _  of _", "the _, of__ it"))
"""Text with masks, with and without spaces beside them."""


def texts_for(tokenizer: Tokenizer | None, lines: Sequence[str] = ()) -> list[str]:
    """Return :data:`SENTENCES`, text that this kind of tokenizer must agree on, and lines.

    The text has what normalisers change, and each added token beside words, inside of one, and alone. Lines with
    literal special tokens that have a role are left out: here they are ordinary text.
    """
    comparable = [line for line in lines if not _has_role(line)]
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return [*SENTENCES, *comparable]
    return [*SENTENCES, *WHAT_NORMALISERS_CHANGE, *texts_with(tokenizer.added_tokens), *comparable]


def texts_with(tokens: Iterable[str]) -> list[str]:
    """Return texts with each token alone, at each place among words and inside of one, and in another case."""
    texts = []
    for token in tokens:
        texts += [token, f"{token} word", f"a word {token}", f"Two {token} words", f"  {token}  café 😀"]
        texts += [f"a{token}b {token}c d{token}", f"{token}{token}"]
        for other_case in (token.lower(), token.upper()):
            if not _has_role(other_case):  # CamemBERT has a token "</s>NOTUSED"
                texts.append(other_case)
    return texts


def _has_role(text: str) -> bool:
    return any(role in text for role in _ROLES)
