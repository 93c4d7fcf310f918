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

    def done(self) -> list[Path]:
        """Return the files that are in their places."""
        places = [(self.destdir / file.destination, file) for file in self.files]
        return [path for path, file in places if _identity(path) == file.identity]

    def can_finish(self) -> bool:
        """Return whether every file is where it was, or in its place."""
        done = self.done()
        return all(
            self.destdir / file.destination in done or _identity(self._source(file)) == file.identity
            for file in self.files
        )

    def finish(self) -> Manifest:
        """Move the files that are not in their places, remove the parts, and return the manifest."""
        done = self.done()
        with uninterrupted():
            for file in self.files:
                path = self.destdir / file.destination
                if path not in done:
                    path.parent.mkdir(exist_ok=True)
                    os.replace(self._source(file), path)
            for directory in {(self.destdir / file.destination).parent for file in self.files}:
                sync(directory)
            self._remove_parts()
            remove(self.destdir / _JOURNAL)
        return Manifest.read(self.destdir / self.files[-1].destination)

    def _remove_parts(self) -> None:
        """Remove what preparations have made; other files, and then the directory, stay."""
        parts = self.destdir / PARTS
        if not parts.exists():
            return
        names = os.listdir(parts)
        for name in names:
            if _OURS.fullmatch(name):
                remove(parts / name, below=self.destdir)
        if not os.listdir(parts):
            parts.rmdir()


def begin_move(options: PreparationOptions, files: Mapping[str, list[Path]]) -> Move:
    """Write the journal of a move, and return the move.

    Args:
        files: the text files by split, which identify the command.
    """
    merged, moves = options.destdir / PARTS / MERGED, []
    for number, data_bin in enumerate(options.data_bins):
        present = os.listdir(merged / str(number))
        names = [name for name in (*TOKENIZER_FILES, *PRODUCTS) if name in present]
        moves += [(f"{number}/{name}", data_bin.relative_to(options.destdir) / name) for name in names]
    if options.shards is not None:
        moves.append((MANIFEST, Path(MANIFEST)))
    moved = [MovedFile(source, str(destination), _identity(merged / source)) for source, destination in moves]
    record = {"command": _command(options, files), "files": [asdict(file) for file in moved]}
    write_record(options.destdir / _JOURNAL, record)
    return Move(options.destdir, tuple(moved))


def find_interrupted_move(options: PreparationOptions, files: Mapping[str, list[Path]]) -> Move | None:
    """Return the move that the same command has begun, if it can be finished; None if there is none."""
    try:
        record = read_record(options.destdir / _JOURNAL, lambda content: (content["command"], content["files"]))
        command, moved = typed(record, tuple[str, tuple[MovedFile, ...]])
    except (UserError, ValueError):  # none, or damaged: its files are refused like any others
        return None
    known = {data_bin / name for data_bin in options.data_bins for name in (*TOKENIZER_FILES, *PRODUCTS)}
    known.add(options.destdir / MANIFEST)
    move = Move(options.destdir, moved)
    is_ours = command == _command(options, files) and all(options.destdir / file.destination in known for file in moved)
    return move if is_ours and moved and move.can_finish() else None


def _command(options: PreparationOptions, files: Mapping[str, Iterable[Path]]) -> str:
    """Return the fingerprint of what a command reads and makes."""
    texts = [(str(path.absolute()), *_identity(path)[1:]) for path in chain.from_iterable(files.values())]
    tokenizer = None if options.kind else open_tokenizer_path(options.tokenizer).fingerprint
    return hashlib.sha256(repr((options.recorded(), tokenizer, texts)).encode()).hexdigest()


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
