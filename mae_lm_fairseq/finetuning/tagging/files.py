"""Files of labelled words: CoNLL-U, and columns as in CoNLL's shared tasks, one word per line.

A file is CoNLL-U if its name ends in ``.conllu``, or that and the ending of a compressed file. In every other file the
first column holds the words. Columns are separated by tabs if every row has one, otherwise by white space. Sentences
end at a line without visible characters, or at one that begins with ``-DOCSTART-``. Comments begin with ``#`` and do
not have the number of columns of the rows; ``#`` also begins words. With white space between columns, lines such as
``# key = value`` are always comments.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.text.conllu import COLUMNS, UNSPECIFIED, conllu_blocks
from mae_lm_fairseq.text.text_files import Chunk, is_compressed, open_text
from mae_lm_fairseq.utils.errors import UserError

BYTE_ORDER_MARK = "\ufeff"
_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#\s*[\w.:-]+\s*=")
_NAMES = re.compile(r"#\s*global\.columns\s*=")
_ID, _FORM = "ID", "FORM"
_NOT_A_WORD = re.compile(r"\d+[-.]\d+")
"""ID of a multiword token, whose words follow, or of an empty node."""


class _Form(NamedTuple):
    """How the cells of a row are separated."""

    separator: re.Pattern[str]
    before: str = ""
    after: str = ""
    """Characters that belong to no cell, before the first one and after the last one."""
    width: int = 0
    """Number of columns between tabs: as many trailing tabs belong to empty cells, and no more."""

    def parts(self, line: str) -> list[str]:
        """Return what is before the cells, the cells with what is between them, and what is after them."""
        start, end = len(line) - len(line.lstrip(self.before)), len(line.rstrip(self.after))
        for _ in range(line.count("\t", 0, end) + 1, self.width):
            end = line.find("\t", end) + 1 or end
        return [line[:start], *self.separator.split(line[start:end]), line[end:]]

    def cells(self, line: str) -> list[str]:
        return self.parts(line)[1::2]


_CONLLU = _Form(re.compile("(\t)"))
_TABS = _Form(re.compile("(\t)"), after=" \t")
_SPACES = _Form(re.compile("([ \t]+)"), before=" \t", after=" \t")


class Sentence(NamedTuple):
    """A sentence."""

    words: tuple[str, ...]
    labels: tuple[str | None, ...]
    """None for words that the file does not label: those with ``_`` or nothing."""
    lines: tuple[int, ...]
    """Line number of each word."""


@dataclass(frozen=True)
class WordFile:
    """A file of labelled words.

    Attributes:
        path: the file.
        start: the byte order mark, if there is one.
        lines: all of its lines.
        ends: the line end of each.
        sentences: the sentences.
        form: how rows are separated into cells.
        column: index of the labels; the number of columns if the file has none.
    """

    path: Path
    start: str
    lines: list[str]
    ends: list[str]
    sentences: list[Sentence]
    form: _Form
    column: int

    @property
    def words(self) -> list[tuple[str, ...]]:
        """The words of each sentence."""
        return [sentence.words for sentence in self.sentences]

    @property
    def labels(self) -> list[tuple[str | None, ...]]:
        """The labels of each sentence, see :class:`Sentence`."""
        return [sentence.labels for sentence in self.sentences]

    @property
    def kinds(self) -> set[str]:
        """The different labels."""
        return {label for labels in self.labels for label in labels} - {None}

    @property
    def is_labelled(self) -> bool:
        return bool(self.kinds)

    @property
    def suffix(self) -> str:
        """The ending of the name, without that of a compressed file."""
        return plain_name(self.path).suffix

    def with_labels(self, labels: Iterable[Sequence[str]]) -> str:
        """Return the file's text with other labels of its words; everything else stays as it is."""
        lines = list(self.lines)
        for sentence, found in zip(self.sentences, labels, strict=True):
            for number, label in zip(sentence.lines, found, strict=True):
                lines[number - 1] = self._with_label(lines[number - 1], label)
        return self.start + "".join(line + end for line, end in zip(lines, self.ends, strict=True))

    def _with_label(self, line: str, label: str) -> str:
        parts = self.form.parts(line)
        place = 2 * self.column + 1
        if place < len(parts):
            parts[place] = label
        elif self.column == 1:  # words alone
            return f"{parts[1]}\t{label}"
        else:
            parts[-1:-1] = [" " if self.form is _SPACES else "\t", label]
        return "".join(parts)


class _Rows(NamedTuple):
    """The rows of words in a file."""

    form: _Form
    blocks: list[list[tuple[int, list[str]]]]
    """Line number and cells of the rows of each sentence."""
    word: int
    """Index of the words."""
    column: int
    """Index of the labels."""


def column_of(file: WordFile, column: str) -> str:
    """Return the column for further files: one that is counted from the last is another in files of another width."""
    return str(file.column + 1) if column.startswith("-") else column


def read_words(path: Path, column: str | None, needs_labels: bool = True) -> WordFile:
    """Read a file.

    Args:
        path: the file, plain or compressed.
        column: name of the column of labels in CoNLL-U; otherwise its number, from 1, or from the last column, -1.
            None if it is not known.
        needs_labels: whether the file must have that column, and label a word in it. CoNLL-U always has its columns.

    Raises:
        UserError: if the file cannot be read, has no words, a malformed line, or no such column.
    """
    text = read_text(path)
    start = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    parts = re.split("(\r?\n)", text.removeprefix(start))
    lines, ends = parts[::2], [*parts[1::2], ""]
    is_conllu = plain_name(path).suffix.lower() == ".conllu"
    rows = _read_conllu(path, lines, column) if is_conllu else _read_columns(path, lines, column, needs_labels)
    sentences = [_sentence(path, block, rows) for block in rows.blocks if block]
    if not sentences:
        raise UserError(f"{path}: has no words; it must have one word per line, in columns")
    found = WordFile(path, start, lines, ends, sentences, rows.form, rows.column)
    if needs_labels and not found.is_labelled:
        raise UserError(f"{path}: column {column} labels no word; choose another one")
    return found


def read_text(path: Path) -> str:
    """Return the text of a file, plain or compressed, as it is.

    Raises:
        UserError: if there is no such file, or it cannot be read.
    """
    if not os.path.isfile(path):
        problem = "not a regular file" if os.path.exists(path) else "no such file"
        raise UserError(f"{path}: {problem}; name one file")
    with open_text(path) as stream:
        data = stream.read()
    Chunk(path, 1, data).lines()  # names the line that is not UTF-8
    return data.decode()


def plain_name(path: Path) -> Path:
    """Return the path of a file without the ending of a compressed one."""
    return path.with_suffix("") if is_compressed(path) else path


def _read_conllu(path: Path, lines: list[str], column: str | None) -> _Rows:
    choices = [name for name in COLUMNS if name not in (_ID, _FORM)]
    if column not in choices:
        given = "" if column is None else f", not {column!r:.80}"
        raise UserError(f"{path}: is CoNLL-U, so that --column must be one of {', '.join(choices)}{given}")
    blocks = [
        [row for row in block if not _NOT_A_WORD.fullmatch(row[1][COLUMNS.index(_ID)])]
        for block in conllu_blocks(path, [*lines, ""])
    ]
    return _Rows(_CONLLU, blocks, COLUMNS.index(_FORM), COLUMNS.index(column))


def _read_columns(path: Path, lines: list[str], column: str | None, needs_labels: bool) -> _Rows:
    form, width = _form_of(lines)
    blocks = [[]]
    for number, line in enumerate(lines, 1):
        cells = form.cells(line)
        if not line.strip() or line.startswith(_DOCUMENT):
            blocks.append([])
        elif _NAMES.match(line):
            raise UserError(
                f"{path}: line {number} names the columns, which is read in .conllu only; remove the line, put the "
                "words into the first column, and give the number of the labels' column as --column"
            )
        elif line.startswith("#") and (len(cells) != width or (form is _SPACES and _COMMENT.match(line))):
            continue
        elif len(cells) != width:
            raise UserError(
                f"{path}: line {number} has another number of columns than other rows, {len(cells)} instead of "
                f"{width}; correct it"
            )
        else:
            blocks[-1].append((number, cells))
    index = _label_index(column, width)
    if index is None and needs_labels and any(blocks):
        raise UserError(
            f"{path}: has no column {column!r:.80} of labels; it has {width}, and the words are in column 1"
            + ("; choose another one" if width > 1 else "; labels need a second column")
        )
    return _Rows(form, blocks, 0, width if index is None else index)


def _form_of(lines: list[str]) -> tuple[_Form, int]:
    """Return how the rows are separated, and their number of columns."""
    candidates = [line for line in lines if line.strip() and not line.startswith(_DOCUMENT)]
    rows = [line for line in candidates if not line.startswith("#")] or candidates
    if not (all("\t" in line for line in rows) and any("\t" in line.rstrip() for line in rows)):
        return _SPACES, len(_SPACES.cells(rows[0])) if rows else 0
    # At the end of a row, a tab is before an empty cell, or superfluous: rows without one have the number of columns.
    complete = [line for line in rows if line.count("\t") == line.rstrip().count("\t")]
    width = len(_TABS.cells(complete[0])) if complete else max(len(_TABS.cells(line)) for line in rows)
    return _TABS._replace(width=width), width


def _label_index(column: str | None, width: int) -> int | None:
    """Return the index of a numbered column other than the first one, which has the words; None without such a one."""
    try:
        number = int(column or 0)
    except ValueError:
        return None
    index = number - 1 if number > 0 else width + number
    return index if 0 < index < width else None


def _sentence(path: Path, block: list[tuple[int, list[str]]], rows: _Rows) -> Sentence:
    for number, cells in block:
        if not cells[rows.word]:
            raise UserError(f"{path}: line {number} has no word; correct it")
    lines, cells = zip(*block, strict=True)
    labels = [row[rows.column] if rows.column < len(row) else "" for row in cells]
    words = tuple(row[rows.word] for row in cells)
    return Sentence(words, tuple(None if label in ("", UNSPECIFIED) else label for label in labels), lines)
