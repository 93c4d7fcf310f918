"""Reading and writing of fairseq's ``dict.txt`` without fairseq; an id is an index into a tuple of symbols."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mae_lm_fairseq.text.tokenizer import MASK, SPECIALS
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import MOST_JSON_BYTES, read_bytes, write_text


def read_symbols(path: str | Path) -> tuple[str, ...]:
    """Return the complete dictionary in the order of ids: ``<s> <pad> </s> <unk>``, the lines of the file, ``<mask>``.

    Raises:
        UserError: if the file cannot be read, a line is not "symbol count", or a symbol is repeated. Counts may be any
            integers, as for fairseq: a ``.vocab`` of sentencepiece has negative ones.
    """
    return parse_symbols(read_bytes(path, MOST_JSON_BYTES), path)


def parse_symbols(content: bytes, path: str | Path) -> tuple[str, ...]:
    """Return the dictionary in the content of a ``dict.txt``; see :func:`read_symbols`."""
    of_file = [symbol for symbol, _ in _parse_lines(content, path)]
    symbols = [*SPECIALS, *of_file, MASK]
    if len(set(symbols)) < len(symbols):
        [(duplicate, _)] = Counter(symbols).most_common(1)
        raise UserError(f"{path}: {duplicate} occurs twice ({' '.join(SPECIALS)} and {MASK} need no line)")
    return tuple(symbols)


def read_counts(path: str | Path) -> dict[int, int]:
    """Return how often the symbol of each id occurs in the training data, as ``dict.txt`` says.

    Raises:
        UserError: as for :func:`read_symbols`.
    """
    counts = [count for _, count in _parse_lines(read_bytes(path), path)]
    return dict(enumerate(counts, len(SPECIALS)))


def _parse_lines(content: bytes, path: str | Path) -> list[tuple[str, int]]:
    try:
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a dictionary of fairseq: it is not UTF-8") from None
    entries = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        symbol, _, count = line.rstrip().rpartition(" ")
        try:
            entries.append((symbol, int(count)))
        except ValueError:
            symbol = ""
        if not symbol:
            raise UserError(f"{path} is not a dictionary of fairseq: line {number} is not a symbol and its count")
    return entries


def write_symbols(symbols: Sequence[str], path: str | Path, counts: Sequence[int] | None = None):
    """Write a dictionary.

    Args:
        symbols: its symbols in the order of ids, with or without ``<mask>``.
        counts: number of occurrences of each symbol; None for 1 each, where they are unknown.
    """
    lines = []
    for index, symbol in enumerate(symbols):
        if symbol not in (*SPECIALS, MASK):
            count = 1 if counts is None else counts[index]
            lines.append(f"{symbol} {count}\n")
    write_text(Path(path), "".join(lines))
