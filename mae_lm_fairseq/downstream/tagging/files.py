"""Files of labelled words: CoNLL-U, and columns as in CoNLL's shared tasks, one word per line.

A file is CoNLL-U if its name ends in ``.conllu`` (and ``.gz`` or ``.xz``). In every other file the first column holds
the words, and columns are separated by tabs if every row has one, otherwise by white space. Sentences end at a line
without visible characters, or at one that begins with ``-DOCSTART-``. Comments are lines such as ``# key = value``, and
others that begin with ``#`` and do not have the number of columns of the rows; ``#`` also begins words.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.text.conllu import COLUMNS, UNSPECIFIED, conllu_blocks
from mae_lm_fairseq.text.text_samples import read_lines
from mae_lm_fairseq.utils.errors import UserError

_TAB, _SPACES = re.compile("(\t)"), re.compile("([ \t]+)")
_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#\s*[\w.:-]+\s*=")
_NAMES = re.compile(r"#\s*global\.columns\s*=(.*)")
_COMPRESSED = (".gz", ".xz")


class Sentence(NamedTuple):
    """A sentence."""

    words: tuple[str, ...]
    labels: tuple[str | None, ...]
    """None for words that the file does not label: those with ``_``."""
    lines: tuple[int, ...]
    """Line number of each word."""


@dataclass(frozen=True)
class WordFile:
    """A file of labelled words.

    Attributes:
        path: the file.
        lines: all of its lines.
        sentences: the sentences.
        separator: pattern between two cells of a row.
        column: index of the labels; the number of columns if the file has none.
    """

    path: Path
    lines: list[str]
    sentences: list[Sentence]
    separator: re.Pattern[str]
    column: int

    @property
    def words(self) -> list[tuple[str, ...]]:
        """The words of each sentence."""
        return [sentence.words for sentence in self.sentences]

    @property
    def is_labelled(self) -> bool:
        return any(label is not None for sentence in self.sentences for label in sentence.labels)

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
        return "".join(f"{line}\n" for line in lines)

    def _with_label(self, line: str, label: str) -> str:
        parts = _parts(line, self.separator)
        if 2 * self.column >= len(parts):
            return "".join([*parts, "\t" if self.column == 1 or self.separator is _TAB else " ", label])
        parts[2 * self.column] = label
        return "".join(parts)


def read_words(path: Path, column: str, needs_labels: bool = True) -> WordFile:
    """Read a file.

    Args:
        path: the file, plain, ``.gz`` or ``.xz``.
        column: name of the column of labels in CoNLL-U or in a line ``# global.columns = FORM ...``; or its number,
            from 1, or from the last column, -1.
        needs_labels: whether the file must have that column, and label a word in it. CoNLL-U always has its columns.

    Raises:
        UserError: if the file cannot be read, has no words, a malformed line, or no such column.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a directory; name a file")
    lines = list(read_lines(path))[:-1]  # without the empty line that ends a file there
    is_conllu = plain_name(path).suffix.lower() == ".conllu"
    found = _read_conllu(path, lines, column) if is_conllu else _read_columns(path, lines, column, needs_labels)
    if not found.sentences:
        raise UserError(f"{path}: has no words; it must have one word per line, in columns")
    if needs_labels and not found.is_labelled:
        raise UserError(f"{path}: column {column} labels no word; choose another one")
    return found


def plain_name(path: Path) -> Path:
    """Return the path of a file without the ending of a compressed one."""
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path


def _read_conllu(path: Path, lines: list[str], column: str) -> WordFile:
    if column not in COLUMNS:
        raise UserError(f"{path}: is CoNLL-U, which has no column {column!r}; choose one of {', '.join(COLUMNS)}")
    index, form = COLUMNS.index(column), COLUMNS.index("FORM")
    sentences = [
        # A multiword token's row is not a word; those of its words follow.
        _sentence([(number, row[form], row[index]) for number, row in block if "-" not in row[0]])
        for block in conllu_blocks(path)
    ]
    return WordFile(path, lines, sentences, _TAB, index)


def _read_columns(path: Path, lines: list[str], column: str, needs_labels: bool) -> WordFile:
    candidates = [line for line in lines if line.strip() and not line.startswith(_DOCUMENT)]
    plain = [line for line in candidates if not line.startswith("#")] or candidates
    separator = _TAB if all("\t" in line.rstrip() for line in plain) else _SPACES
    width = len(_cells(plain[0], separator)) if plain else 0
    blocks, names = [[]], ()
    for number, line in enumerate(lines, 1):
        cells = _cells(line, separator)
        if not line.strip() or line.startswith(_DOCUMENT):
            blocks.append([])
        elif named := _NAMES.match(line):
            names = tuple(named[1].split())
        elif _COMMENT.match(line) or (line.startswith("#") and len(cells) != width):
            continue
        elif len(cells) != width:
            raise UserError(
                f"{path}: line {number} has another number of columns than the first row, {len(cells)} instead of "
                f"{width}; correct it"
            )
        elif not cells[0]:
            raise UserError(f"{path}: line {number} has no word; correct it")
        else:
            blocks[-1].append((number, cells))
    word, index = (names.index("FORM") if "FORM" in names else 0), _label_index(column, width, names)
    if index is None and needs_labels and any(blocks):
        raise UserError(
            f"{path}: has no column {column!r} of labels; it has {width}, and the first has the words"
            + (f" (columns: {', '.join(names)})" if names else "")
            + (f"; choose one from 2 to {width}, or its name" if width > 1 else "; labels need a second column")
        )
    index = width if index is None else index
    sentences = [
        _sentence([(number, row[word], row[index] if index < width else UNSPECIFIED) for number, row in block])
        for block in blocks
        if block
    ]
    return WordFile(path, lines, sentences, separator, index)


def _label_index(column: str, width: int, names: tuple[str, ...]) -> int | None:
    """Return the index of a column other than the first, None if there is no such column."""
    if column in names:
        return names.index(column)
    try:
        number = int(column)
    except ValueError:
        return None
    index = number - 1 if number > 0 else width + number
    return index if 1 <= index < width else None


def _sentence(rows: Iterable[tuple[int, str, str]]) -> Sentence:
    lines, words, labels = zip(*rows, strict=True)
    return Sentence(words, tuple(None if label == UNSPECIFIED else label for label in labels), lines)


def _cells(line: str, separator: re.Pattern[str]) -> list[str]:
    return _parts(line, separator)[::2]


def _parts(line: str, separator: re.Pattern[str]) -> list[str]:
    """Return the cells of a line with what is between them."""
    return separator.split(line.strip(" \t") if separator is _SPACES else line.rstrip(" \t"))
