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


class Row(NamedTuple):
    """A line of a file: its number, from 1, and its cells."""

    line: int
    cells: list[str]


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
    sentences = evenly_spaced(list(conllu_sentences(path)), limit)
    labelled = [_labelled(rows, COLUMNS.index(column)) for rows in sentences]
    if not any(sentence.labels for sentence in labelled):
        raise UserError(f"{path}: column {column} labels no word; choose another column")
    return labelled


def conllu_sentences(path: str | Path, lines: Iterable[str] | None = None) -> Iterator[list[Row]]:
    """Yield the rows of each sentence, without empty nodes, which are no part of its text.

    Args:
        lines: its lines, with a blank one at the end; None to read them.

    Raises:
        UserError: if the file cannot be read, or a line does not have ten columns.
    """
    rows = []
    if lines is None:
        lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != len(COLUMNS) or not _ID.fullmatch(cells[0]):
                raise UserError(f"{path}: line {number} is not CoNLL-U, an ID and {len(COLUMNS) - 1} more columns")
            if "." not in cells[0]:
                rows.append(Row(number, cells))
        elif rows and not line.strip():
            yield rows
            rows = []


def _labelled(rows: list[Row], column: int) -> LabelledSentence:
    text = ""
    starts, labels, forms = [], [], []
    for token, words in _tokens(rows):
        end = 0
        for word in words:
            form = word[_FORM]
            start = token[_FORM].find(form, end)
            if word[column] != UNSPECIFIED:
                starts.append(len(text) + max(start, 0))
                labels.append(word[column])
                forms.append(form)
            if start >= 0:
                end = start + len(form)
        text += token[_FORM]
        if "SpaceAfter=No" not in token[-1].split("|"):
            text += " "
    return LabelledSentence(text.rstrip(), starts, labels, forms)


def _tokens(rows: list[Row]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the cells of each token of the text, and those of its words."""
    remaining = (row.cells for row in rows)
    for token in remaining:
        first, _, last = token[0].partition("-")
        if last:
            count = int(last) - int(first) + 1
            yield token, list(islice(remaining, max(0, count)))
        else:
            yield token, [token]
