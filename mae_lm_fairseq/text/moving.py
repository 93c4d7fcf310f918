"""The last step of a preparation: its data-bins move from the directory of the parts to their places.

Before the first file moves, a journal says which ones do. The same command finishes a move that was interrupted. The
manifest of each data-bin moves last, then the parts are removed, and finally the journal.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.preparation_options import PRODUCTS, PreparationOptions
from mae_lm_fairseq.text.tokenizer_files import TOKENIZER_FILES, open_tokenizer_path
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_record, write_record
from mae_lm_fairseq.utils.signals import uninterrupted
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.writing import remove, sync

PARTS, MERGED = "parts", "merged"
"""Directory in ``--destdir`` of tokenizer and parts, until they are merged; and of the merged data-bins in it."""
_JOURNAL = ".moving.json"
_OURS = re.compile(r"(train|valid)-\d{5,}-\w{12}|tokenizer-\w{12}|merged|\.(train|valid|tokenizer|merged)[-.].+")
"""Names in the directory of the parts that a preparation makes."""


@dataclass(frozen=True)
class MovedFile:
    """A file that moves.

    Attributes:
        source: its path in the directory of the merged data-bins.
        destination: its path in ``--destdir``.
        identity: inode, size and modification time, which stay the same.
    """

    source: str
    destination: str
    identity: tuple[int, int, int]


@dataclass(frozen=True)
class Move:
    """A move of data-bins to their places.

    Attributes:
        destdir: value of ``--destdir``.
        files: the files in the order in which they move.
    """

    destdir: Path
    files: tuple[MovedFile, ...]

    def _source(self, file: MovedFile) -> Path:
        return self.destdir / PARTS / MERGED / file.source

    def _place(self, file: MovedFile) -> Path:
        return self.destdir / file.destination

    def places(self) -> list[Path]:
        """Return the places of all files, in their order."""
        return list(map(self._place, self.files))

    def _pending(self) -> list[MovedFile]:
        """Return the files that are not in their places."""
        return [file for file in self.files if _identity(self._place(file)) != file.identity]

    def done(self) -> list[Path]:
        """Return the files that are in their places."""
        pending = self._pending()
        return [self._place(file) for file in self.files if file not in pending]

    def can_finish(self) -> bool:
        """Return whether every file is where it was, or in its place."""
        return all(_identity(self._source(file)) == file.identity for file in self._pending())

    def finish(self) -> Manifest:
        """Move the files that are not in their places, remove the parts, and return the manifest."""
        pending = self._pending()
        places = self.places()
        with uninterrupted():
            for file in pending:
                place = self._place(file)
                place.parent.mkdir(exist_ok=True)
                os.replace(self._source(file), place)
            for directory in {place.parent for place in places}:
                sync(directory)
            self._remove_parts()
            remove(self.destdir / _JOURNAL)
        return Manifest.read(places[-1])

    def _remove_parts(self) -> None:
        """Remove what preparations have made; other files, and then the directory, stay."""
        parts = self.destdir / PARTS
        if not parts.exists():
            return
        for name in os.listdir(parts):
            if _OURS.fullmatch(name):
                remove(parts / name, below=self.destdir)
        if not os.listdir(parts):
            parts.rmdir()


def begin_move(options: PreparationOptions, files: Mapping[str, list[Path]]) -> Move:
    """Write the journal of a move, and return the move.

    Args:
        files: the text files by split, which identify the command.
    """
    merged = options.destdir / PARTS / MERGED
    destinations = {}
    for number, data_bin in enumerate(options.data_bins):
        present = os.listdir(merged / str(number))
        directory = data_bin.relative_to(options.destdir)
        for name in (*TOKENIZER_FILES, *PRODUCTS):
            if name in present:
                destinations[f"{number}/{name}"] = str(directory / name)
    if options.shards is not None:
        destinations[MANIFEST] = MANIFEST

    files_to_move = []
    for source, destination in destinations.items():
        files_to_move.append(MovedFile(source, destination, _identity(merged / source)))
    record = {"command": _command(options, files), "files": list(map(asdict, files_to_move))}
    write_record(options.destdir / _JOURNAL, record)
    return Move(options.destdir, tuple(files_to_move))


def find_interrupted_move(options: PreparationOptions, files: Mapping[str, list[Path]]) -> Move | None:
    """Return the move that the same command has begun, if it can be finished; None if there is none."""
    try:
        command, files_to_move = read_record(options.destdir / _JOURNAL, _journal)
    except UserError:  # none, or damaged: its files are refused like any others
        return None
    if command != _command(options, files) or not files_to_move:
        return None
    move = Move(options.destdir, files_to_move)
    is_ours = set(move.places()).issubset(options.products)
    return move if is_ours and move.can_finish() else None


def _journal(content: Any) -> tuple[str, tuple[MovedFile, ...]]:
    return typed(content["command"], str), typed(content["files"], tuple[MovedFile, ...])


def _command(options: PreparationOptions, files: Mapping[str, Iterable[Path]]) -> str:
    """Return the fingerprint of what a command reads and makes."""
    texts = []
    for path in chain.from_iterable(files.values()):
        _, size, modified = _identity(path)
        texts.append((str(path.absolute()), size, modified))
    tokenizer = None if options.kind else open_tokenizer_path(options.tokenizer).fingerprint
    depends_on = repr((options.recorded(), tokenizer, texts))
    return hashlib.sha256(depends_on.encode()).hexdigest()


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
