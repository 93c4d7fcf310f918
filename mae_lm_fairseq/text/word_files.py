"""Files of labelled words: CoNLL-U, and columns as in CoNLL's shared tasks, one word per line.

A file is CoNLL-U if its name ends in ``.conllu``, or that and the ending of a compressed file. In every other file the
first column holds the words. Columns are separated by tabs if every row has one, otherwise by white space. Sentences
end at a line without visible characters, or at one that begins with ``-DOCSTART-``. Comments begin with ``#`` and do
not have the number of columns of the rows; ``#`` also begins words. With white space between columns, lines such as
``# key = value`` are always comments.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.text.conllu import COLUMNS, UNSPECIFIED, Row, conllu_sentences
from mae_lm_fairseq.text.records import check_no_json, format_of
from mae_lm_fairseq.text.text_files import is_compressed, read_chunks
from mae_lm_fairseq.utils.errors import UserError

_DOCUMENT = "-DOCSTART-"
_BLANKS = " \t"
_PART_OF_WORDS = re.compile(r"\d+[-.]\d+")
_COMMENT = re.compile(r"#\s*[\w.:-]+\s*=")
_ID, _FORM = COLUMNS.index("ID"), COLUMNS.index("FORM")
_CONLLU, _CONLLU_PLUS = ".conllu", ".conllup"
_NAMES_OF_WORDS = ("form", "text", "token", "tokens", "word", "words")
"""Names of the column of words in a line that names the columns, in lower case."""
_HEADER = f"# global.columns = {' '.join(COLUMNS)} PREDICTION"
"""First line of CoNLL-U with a further column, which makes it CoNLL-U Plus."""


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
        lines: all lines of the file; without white space around them, unless tabs separate columns.
        separator: what separates a further column.
        column: index of the labels; the number of columns if the file has none.
    """

    path: Path
    lines: list[str]
    sentences: list[Sentence]
    separator: str
    column: int

    @property
    def words(self) -> list[tuple[str, ...]]:
        return [sentence.words for sentence in self.sentences]

    @property
    def labels(self) -> list[tuple[str | None, ...]]:
        return [sentence.labels for sentence in self.sentences]

    @property
    def kinds(self) -> set[str]:
        """The different labels."""
        return set(chain.from_iterable(self.labels)) - {None}

    @property
    def suffix(self) -> str:
        """The ending of the name of a file with predictions."""
        return _CONLLU_PLUS if _is_conllu(self.path) else plain_name(self.path).suffix

    def check_labels(self, labels: Iterable[str]) -> None:
        """Check labels that a model may predict for its words.

        Raises:
            UserError: if a label has white space that separates columns.
        """
        for label in labels:
            if {"\t", "\n", "\r", self.separator}.intersection(label):
                raise UserError(f"{self.path}: the label {label!r} would be several columns; separate them by tabs")

    def with_predictions(self, labels: Iterable[Sequence[str]]) -> str:
        """Return the file's text with labels of its words in a new last column.

        CoNLL-U becomes CoNLL-U Plus, with ``_`` for multiword tokens and empty nodes. The labels are those that
        :meth:`check_labels` accepts.
        """
        lines = list(self.lines)
        header = []
        if _is_conllu(self.path):
            header = [_HEADER]
            for number, line in enumerate(lines):
                if line.strip() and not line.startswith("#"):
                    lines[number] = f"{line}\t{UNSPECIFIED}"
        for sentence, predicted in zip(self.sentences, labels, strict=True):
            for number, label in zip(sentence.lines, predicted, strict=True):
                lines[number - 1] = f"{self.lines[number - 1]}{self.separator}{label}"
        return "".join(f"{line}\n" for line in header + lines)


def column_of(file: WordFile, column: str) -> str:
    """Return the column for further files: one that is counted from the last is another in files of another width."""
    return str(file.column + 1) if column.startswith("-") else column


def read_words(path: Path, column: str | None, is_labelled: bool = True) -> WordFile:
    """Read a file.

    Args:
        column: name of the column of labels in CoNLL-U; otherwise its number, from 1, or from the last column, -1.
            None if it is not known.
        is_labelled: whether the file must have this column. Otherwise no word of a file without it has a label.

    Raises:
        UserError: if the file cannot be read, is of another format, lacks the column, or has no words or a malformed
            line.
    """
    if format_of(path) and plain_name(path).suffix.lower() != ".tsv":
        raise UserError(f"{path}: has records; words are read from CoNLL-U, or from columns with one word per line")
    lines = list(chain.from_iterable(chunk.lines() for chunk in read_chunks(path)))
    if _is_conllu(path):
        file = _read_conllu(path, lines, column)
    else:
        file = _read_other(path, lines, column, is_labelled)
    if not file.sentences:
        raise UserError(f"{path}: has no words; it must have one word per line, in columns")
    return file


def _read_conllu(path: Path, lines: list[str], column: str | None) -> WordFile:
    choices = COLUMNS[_FORM + 1 :]
    if column not in choices:
        raise UserError(f"{path}: is CoNLL-U, so that --column must be one of {', '.join(choices)}")
    label = COLUMNS.index(column)
    sentences = []
    for rows in conllu_sentences(path, [*lines, ""]):
        words = [row for row in rows if "-" not in row.cells[_ID]]
        if words:
            sentences.append(_sentence(path, words, _FORM, label))
    return WordFile(path, lines, sentences, "\t", label)


def _read_other(path: Path, lines: list[str], column: str | None, is_labelled: bool) -> WordFile:
    check_no_json(path)
    has_tabs = all("\t" in line for line in _rows_among(lines))
    if not has_tabs:
        lines = [line.strip(_BLANKS) for line in lines]
    rows_of_sentences, width = _read_columns(path, lines, has_tabs)
    separator = "\t" if has_tabs or width == 1 else " "
    label = _label_index(column, width)
    if is_labelled and label == width > 0:
        raise UserError(f"{path}: has no column {column} of labels; it has {width}, and the first has the words")
    _check_words(path, rows_of_sentences, label)
    sentences = [_sentence(path, rows, 0, label) for rows in rows_of_sentences]
    return WordFile(path, lines, sentences, separator, label)


def _check_words(path: Path, sentences: list[list[Row]], label: int) -> None:
    """Refuse columns of which the first one has no words, and a line that names the columns.

    Numbers would be learned as words, and the name of a column as a class.

    Args:
        label: index of the labels.

    Raises:
        UserError: if there are such columns; it names the remedy.
    """
    if not sentences:
        return
    first, *others = chain.from_iterable(sentences)
    width = len(first.cells)
    longest = max(map(len, sentences))
    if width > 1 and longest > 1 and all(map(_is_numbered, sentences)):
        remedy = "rename the file to end in .conllu" if width == len(COLUMNS) else "remove that column"
        raise UserError(f"{path}: the first column has the numbers of the words, not the words; {remedy}")
    if label >= width:
        return
    names_words = first.cells[0].lower() in _NAMES_OF_WORDS
    if names_words and all(row.cells[label] != first.cells[label] for row in others):
        raise UserError(f"{path}: line {first.line} names the columns ({' '.join(first.cells)}); remove it")


def _is_numbered(rows: list[Row]) -> bool:
    """Return whether the first column counts the words of a sentence."""
    # CoNLL-U also has ranges and decimals, of multiword tokens and empty nodes.
    first_cells = [row.cells[0] for row in rows]
    words = [cell for cell in first_cells if not _PART_OF_WORDS.fullmatch(cell)]
    return words == [str(number) for number in range(1, len(words) + 1)]


def plain_name(path: Path) -> Path:
    """Return the path of a file without the ending of a compressed one."""
    return path.with_suffix("") if is_compressed(path) else path


def _is_conllu(path: Path) -> bool:
    return plain_name(path).suffix.lower() == _CONLLU


def _rows_among(lines: list[str]) -> list[str]:
    """Return the lines that are rows for certain: those that begin with ``#`` only if there are no others."""
    candidates = [line for line in lines if line.strip() and not line.startswith(_DOCUMENT)]
    return [line for line in candidates if not line.startswith("#")] or candidates


def _read_columns(path: Path, lines: list[str], has_tabs: bool) -> tuple[list[list[Row]], int]:
    """Return the rows of each sentence, and the number of columns; remove superfluous tabs from the ends of lines."""
    rows = [line.rstrip(_BLANKS) for line in _rows_among(lines)]
    width = max((len(_cells(row, has_tabs)) for row in rows), default=0)
    sentences = [[]]
    for number, line in enumerate(lines, 1):
        cells = _cells(line, has_tabs)
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        has_key = not has_tabs and _COMMENT.match(line)
        if not line.strip() or line.startswith(_DOCUMENT):
            sentences.append([])
        elif line.startswith("#") and (has_key or len(cells) != width):
            continue
        elif len(cells) != width:
            raise UserError(
                f"{path}: line {number} has another number of columns than other rows, {len(cells)} instead of "
                f"{width}; correct it"
            )
        else:
            sentences[-1].append(Row(number, cells))
            lines[number - 1] = "\t".join(cells) if has_tabs else line
    return [rows for rows in sentences if rows], width


def _cells(line: str, has_tabs: bool) -> list[str]:
    return line.split("\t") if has_tabs else re.split(f"[{_BLANKS}]+", line)


def _label_index(column: str | None, width: int) -> int:
    """Return the index of a numbered column other than the first one, which has the words; the width without one."""
    try:
        number = int(column or 0)
    except ValueError:
        return width
    index = number - 1 if number > 0 else width + number
    return index if 0 < index < width else width


def _sentence(path: Path, rows: list[Row], word: int, label: int) -> Sentence:
    words, labels = [], []
    for line, cells in rows:
        if not cells[word]:
            raise UserError(f"{path}: line {line} has no word; correct it")
        words.append(cells[word])
        value = cells[label] if label < len(cells) else ""
        labels.append(None if value in ("", UNSPECIFIED) else value)
    lines = tuple(row.line for row in rows)
    return Sentence(tuple(words), tuple(labels), lines)
