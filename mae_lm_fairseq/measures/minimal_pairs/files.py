"""Readers for minimal pairs: BLiMP (Warstadt et al., 2020) and Zorro (Huebner et al., 2021)."""

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.text.text_samples import evenly_spaced, read_lines
from mae_lm_fairseq.utils.errors import UserError


class Pair(NamedTuple):
    """A grammatical sentence, and an ungrammatical one that differs from it as little as possible."""

    good: str
    bad: str


class Paradigm(NamedTuple):
    """Pairs of one construction, and the field of grammar that it belongs to."""

    name: str
    field: str
    pairs: list[Pair]


_Row = tuple[str, str, Pair]
"""Paradigm, field and pair."""


def read_paradigms(directory: Path, limit: int | None = None) -> list[Paradigm]:
    """Read the files of a directory in the layout of BLiMP (``*.jsonl``) or of Zorro (``*.txt``).

    Args:
        directory: with one file for each paradigm.
        limit: number of pairs of each file, evenly spaced, as neighbours are alike in Zorro; None for all.

    Raises:
        UserError: if there are files in both layouts or in neither, or a file is invalid.
    """
    blimp, zorro = sorted(directory.glob("*.jsonl")), sorted(directory.glob("*.txt"))
    if bool(blimp) == bool(zorro):
        raise UserError(
            f"--pairs {directory}: must hold either BLiMP's files (*.jsonl) or Zorro's (*.txt), and holds "
            f"{len(blimp)} and {len(zorro)} of them"
        )
    paradigms = [_read(_blimp, path, limit) for path in blimp] + [_read(_zorro, path, limit) for path in zorro]
    # By field, so that tables list together what belongs together.
    return sorted(paradigms, key=lambda paradigm: (paradigm.field, paradigm.name))


def _read(rows_of: Callable[[Path], Iterator[_Row]], path: Path, limit: int | None) -> Paradigm:
    found = [
        (paradigm, [pair for *_, pair in rows]) for paradigm, rows in groupby(rows_of(path), key=lambda row: row[:2])
    ]
    if len(found) != 1:
        raise UserError(f"{path}: must hold the pairs of one paradigm, and holds those of {len(found)}")
    [((name, field), pairs)] = found
    return Paradigm(name, field, evenly_spaced(pairs, limit))


def _blimp(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(filter(str.strip, read_lines(path)), 1):
        try:
            row = json.loads(line)
            values = [row[name] for name in ("UID", "field", "sentence_good", "sentence_bad")]
        except (ValueError, LookupError, TypeError, RecursionError):
            values = [None]
        if not all(isinstance(value, str) and value.strip() for value in values):
            raise UserError(
                f"{path}: line {number} is not a JSON object with UID, field, sentence_good and sentence_bad; restore "
                "the file"
            )
        name, field, good, bad = values
        # One of BLiMP's files says syntax/semantics, the others syntax_semantics.
        yield name, field.replace("/", "_"), Pair(good, bad)


def _zorro(path: Path) -> Iterator[_Row]:
    lines = [line.strip() for line in read_lines(path) if line.strip()]
    if len(lines) % 2:
        raise UserError(f"{path}: has {len(lines)} lines, which are not pairs; restore the file")
    field = path.stem.partition("-")[0]
    for bad, good in zip(lines[::2], lines[1::2], strict=True):
        yield path.stem, field, Pair(good, bad)
