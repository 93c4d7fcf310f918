"""Reader for annotated sentences in the CoNLL-U format of Universal Dependencies."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.text.text_samples import evenly_spaced, read_lines
from mae_lm_fairseq.utils.errors import UserError

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
LABELS = ("UPOS", "XPOS", "FEATS", "DEPREL")
"""The columns whose values are classes of words."""
UNSPECIFIED = "_"
_FORM = COLUMNS.index("FORM")
_ID = re.compile(r"\d{1,9}([-.]\d{1,9})?")
"""A word (``7``), a multiword token (``7-8``) or an empty node (``7.1``)."""


class LabelledSentence(NamedTuple):
    """A sentence and its labelled words."""

    text: str
    starts: list[int]
    """Where in the text each labelled word starts, in characters."""
    labels: list[str]
    words: list[str]
    """The form of each labelled word."""


def read_conllu(path: str | Path, column: str, limit: int | None = None) -> list[LabelledSentence]:
    """Read the sentences of a file, plain or compressed, with the words that a column labels.

    The text is put together from the tokens, as ``SpaceAfter=No`` says. The words of a multiword token, such as ``do``
    and ``n't``, start where their forms stand in it, and at its start if they do not.

    Args:
        column: one of :data:`LABELS`.
        limit: number of sentences, evenly spaced in the file, which may be in the order of genres; None for all.

    Raises:
        UserError: if the file cannot be read, a line does not have ten columns, or the column labels no word.
    """
    blocks = evenly_spaced(list(conllu_blocks(path)), limit)
    sentences = [_sentence([row for _, row in block], COLUMNS.index(column)) for block in blocks]
    if not any(sentence.labels for sentence in sentences):
        raise UserError(f"{path}: column {column} labels no word; choose another column")
    return sentences


def conllu_blocks(path: str | Path, lines: Iterable[str] | None = None) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield (line number, cells) of the rows of each sentence, without empty nodes, which are no part of its text.

    Args:
        lines: its lines, with a blank one at the end; None to read them.

    Raises:
        UserError: if the file cannot be read, or a line does not have ten columns.
    """
    rows = []
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if line.strip() and not line.startswith("#"):
            row = line.split("\t")
            if len(row) != len(COLUMNS) or not _ID.fullmatch(row[0]):
                raise UserError(f"{path}: line {number} is not CoNLL-U, an ID and {len(COLUMNS) - 1} more columns")
            rows += [(number, row)] * ("." not in row[0])
        elif rows and not line.strip():
            yield rows
            rows = []


def _sentence(rows: list[list[str]], column: int) -> LabelledSentence:
    text, starts, labels, forms = "", [], [], []
    for token, words in _tokens(rows):
        position = 0
        for word in words:
            found = token[_FORM].find(word[_FORM], position)
            if word[column] != UNSPECIFIED:
                starts.append(len(text) + max(found, 0))
                labels.append(word[column])
                forms.append(word[_FORM])
            position = found + len(word[_FORM]) if found >= 0 else position
        text += token[_FORM] + ("" if "SpaceAfter=No" in token[-1].split("|") else " ")
    return LabelledSentence(text.rstrip(), starts, labels, forms)


def _tokens(rows: list[list[str]]) -> Iterator[tuple[list[str], list[list[str]]]]:
    remaining = iter(rows)
    for row in remaining:
        first, _, last = row[0].partition("-")
        yield row, list(islice(remaining, max(0, int(last) - int(first) + 1))) if last else [row]
