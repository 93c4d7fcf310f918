"""Which slice of the original text each piece of it stands for.

sentencepiece normalises before it cuts (NFKC, white space, control characters), so that pieces, put together, are not
the text; but it tells the characters of the original that each piece was made of.
"""

import unicodedata

import numpy as np

from mae_lm_fairseq.text.tokenizer import WORD_START, Tokenizer


def encode_with_spans(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of a text, and the characters that each one stands for.

    A piece has the characters that it was made of, without white space around them. All pieces of one character, such
    as the bytes of an emoji or ``1``, the fraction slash and ``2`` of a half sign, have that character; a mere word
    start has what the next piece has. Any slice of ``text`` from the begin of a piece to the end of the same or a later
    one begins and ends with something visible; it is empty only after the last visible character.

    Args:
        tokenizer: of the model.
        text: anything that UTF-8 can hold.

    Returns:
        ids: int32[pieces], fairseq's.
        spans: int64[pieces, 2], begin and end of each piece in ``text``, counted in characters; both ascend.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    visible = np.fromiter((not _is_blank(character) for character in text), dtype=bool, count=len(text))
    # int64[characters + 1]: the first visible character from here on, and one past the last one up to here.
    next_visible = np.append(np.where(visible, np.arange(len(text)), len(text)), len(text))
    next_visible = np.minimum.accumulate(next_visible[::-1])[::-1]
    last_visible = np.maximum.accumulate(np.append(0, np.where(visible, np.arange(1, len(text) + 1), 0)))
    begins, ends = next_visible[spans[:, 0]], last_visible[spans[:, 1]]
    # A piece without a character of its own shares the next piece that has one.
    own = begins < ends
    index = np.arange(len(ids))
    owner = np.minimum.accumulate(np.where(own, index, len(ids))[::-1])[::-1]
    shared = owner < len(ids)
    begins[~shared] = ends[~shared] = last_visible[-1]
    begins[shared], ends[shared] = begins[owner[shared]], ends[owner[shared]]
    return ids, np.stack([begins, ends], axis=1)


def _is_blank(character: str) -> bool:
    """White space, and what is not seen: control characters and joiners, a BOM, sentencepiece's own word start."""
    return character.isspace() or character == WORD_START or unicodedata.category(character) in ("Cc", "Cf")
