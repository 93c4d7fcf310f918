"""Parts: the unit of work of a preparation on several machines.

A part is some consecutive documents, encoded into a small data-bin. The corpus alone determines the parts, and the
bytes of a part do not depend on where, when or how often it is made. A part is written under a temporary name and
renamed, so a part that exists is complete.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.corpus import Piece, Reading, read_piece, small_pieces
from mae_lm_fairseq.text.data_bin import DataBinWriter, token_type
from mae_lm_fairseq.text.encoding import EncodedBlock, encode_lines, encode_pieces
from mae_lm_fairseq.text.text_files import Chunk
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256

PART_BYTES = 1 << 24
MOST_PARTS = 4096
_LISTED_CHARACTERS = 100
RECORD = "part.json"
_PROBES, _PROBE_BYTES = 8, 1 << 16
_INDEX_BYTES, _COUNT_BYTES = 12, 6
"""Bytes on the disk of a line in the index, and of a count in the dictionary."""
_WORKER_BYTES = 120_000_000
"""Memory of a process that encodes. Measured: 68 to 80 MB with 8,000 subwords (docs/results/speed.md)."""
_TRAINING_BYTES = 85
"""Memory of a line in a training process. Measured: 84 (400,000 lines of 58 tokens, samples of 128 tokens)."""


@dataclass(frozen=True)
class Job:
    """Settings that all parts of a preparation share.

    Attributes:
        directory: directory of the parts, on a file system that all machines share.
        tokenizer: directory of the tokenizer in it.
        fingerprint: fingerprints of the tokenizer and its dictionary.
        reading: how records are read.
    """

    directory: Path
    tokenizer: Path
    fingerprint: str
    reading: Reading


@dataclass(frozen=True)
class Part:
    """Some consecutive documents of a split.

    Attributes:
        name: name of its directory; it identifies text, tokenizer and ``--text-field``.
        pieces: the pieces of the corpus in order.
        size: estimated number of bytes of text.
    """

    name: str
    pieces: tuple[Piece, ...]
    size: int


@dataclass(frozen=True)
class PartRecord:
    """Statistics and checksums of a finished part.

    Attributes:
        begins_document: whether the part does not continue the document of the part before it.
        lines, tokens: size of its data-bin.
        unk: number of ``<unk>`` tokens.
        malformed: number of malformed records that were skipped.
        lost_joiners: number of joiners that the tokenizer has dropped or replaced by a space.
        unknown: counts of the most frequent characters that became ``<unk>``.
        sha256: SHA-256 of ``tokens.bin`` and ``tokens.idx``.
    """

    begins_document: bool
    lines: int
    tokens: int
    unk: int
    malformed: int
    lost_joiners: int
    unknown: dict[str, int]
    sha256: dict[str, str]


def plan_parts(split: str, files: list[Path], job: Job) -> list[Part]:
    """Divide the files of a split into parts.

    Raises:
        UserError: if a file cannot be read.
    """
    files = [path.absolute() for path in files]
    size = max(PART_BYTES, sum(path.stat().st_size for path in files) // MOST_PARTS)
    groups, total = [[]], 0
    for piece in small_pieces(files, job.reading, size):
        if total >= size:
            groups.append([])
            total = 0
        groups[-1].append(piece)
        total += piece.size
    return [
        Part(f"{split}-{number:05}-{_key(group, job)}", tuple(group), sum(piece.size for piece in group))
        for number, group in enumerate(groups)
        if group
    ]


def _key(pieces: list[Piece], job: Job) -> str:
    """Return a digest of what the bytes of a part depend on."""
    digest = hashlib.sha256(f"{job.fingerprint} {job.reading.text_field!r}".encode())
    for piece in pieces:
        status = piece.path.stat()
        content = (str(piece.path), status.st_size, status.st_mtime_ns, piece.start, piece.end)
        digest.update(repr(content).encode())
    return digest.hexdigest()[:12]


def encode_part(part: Part, job: Job) -> bool:
    """Make a part, unless a valid one exists.

    Returns:
        Whether a part was reused.

    Raises:
        UserError: if the corpus or the directory cannot be read, or a record is malformed.
    """
    destination = job.directory / part.name
    record = valid_record(destination)
    if record is not None and (job.reading.skip_malformed or not record.malformed):
        return True
    if not job.tokenizer.exists():
        raise UserError(f"{job.tokenizer}: not found on {os.uname().nodename}; all machines must share the file system")
    directory = Path(tempfile.mkdtemp(prefix=f".{part.name}.", dir=job.directory))
    try:
        _write_part(part, job, directory)
        if record is None and destination.exists():
            shutil.rmtree(destination)  # damaged
        rename_new(directory, destination)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return False


def rename_new(directory: Path, destination: Path):
    """Rename a directory, unless the destination exists because another process was faster."""
    try:
        os.rename(directory, destination)
    except OSError:
        if not destination.exists():
            raise


def _write_part(part: Part, job: Job, directory: Path):
    tokenizer = _tokenizer(job.tokenizer)
    begins_document = []  # for each chunk with text

    def encode(chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, EncodedBlock]]:
        for chunk in chunks:
            begins_document.extend([chunk.begins_document] if chunk.data else [])
            yield chunk, encode_lines(chunk.lines(), tokenizer)

    symbols = len(tokenizer.symbols)
    with DataBinWriter(directory / "tokens", symbols) as writer:
        statistics = encode_pieces(part.pieces, job.reading, symbols, encode, writer, lambda size: None)
    record = PartRecord(
        begins_document=any(begins_document[:1]),
        lines=statistics.lines,
        tokens=statistics.tokens,
        unk=statistics.unknown_tokens(tokenizer),
        malformed=statistics.malformed,
        lost_joiners=statistics.lost_joiners,
        unknown=dict(statistics.unknown.most_common(_LISTED_CHARACTERS)),
        sha256=_checksums(directory),
    )
    (directory / RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    return open_tokenizer_path(path)


def valid_record(directory: Path) -> PartRecord | None:
    """Return the record of a finished part in a directory; None unless its checksums are right."""
    try:
        record = PartRecord(**json.loads((directory / RECORD).read_text(encoding="utf-8")))
        return record if record.sha256 == _checksums(directory) else None
    except (OSError, ValueError, TypeError, UserError):
        return None


def _checksums(directory: Path) -> dict[str, str]:
    return {name: file_sha256(directory / name) for name in ("tokens.bin", "tokens.idx")}


def estimate(parts: dict[str, list[Part]], tokenizer: Tokenizer, reading: Reading, data_bins: int) -> str:
    """Return a sentence about disk space and memory.

    Args:
        parts: parts of the training and the validation text, of which a few are probed.
        tokenizer: encodes the text.
        reading: how records are read.
        data_bins: number of data-bins, each with its own copy of tokenizer, dictionary and validation text.
    """
    (train, lines), (valid, _) = (_disk_and_lines(parts[split], tokenizer, reading) for split in ("train", "valid"))
    dictionary = sum(len(piece.encode()) + _COUNT_BYTES for piece in tokenizer.pieces)
    kept = train + data_bins * (valid + dictionary + sum(map(len, tokenizer.files.values())))
    memory = lines * _TRAINING_BYTES / data_bins
    return (
        f"estimate: {_size(kept + train + valid)} of disk while preparing, {_size(kept)} afterwards; "
        f"{_size(_WORKER_BYTES)} of memory per worker; in training, about {_size(memory)} "
        "of memory per process for the index of a data-bin, whose tokens stay on disk"
    )


def _disk_and_lines(parts: list[Part], tokenizer: Tokenizer, reading: Reading) -> tuple[float, float]:
    """Return the estimated size of encoded parts in bytes, and their number of lines."""
    text = lines = tokens = 0
    for part in parts[:: max(1, len(parts) // _PROBES)]:
        for chunk in read_piece(part.pieces[0], reading, _PROBE_BYTES):
            sizes = tokenizer.encode_block(chunk.lines())[1]
            text, lines, tokens = text + len(chunk.data), lines + len(sizes), tokens + int(np.sum(sizes))
            break
    scale = sum(part.size for part in parts) / max(text, 1)
    return scale * (tokens * token_type(len(tokenizer.symbols)).itemsize + lines * _INDEX_BYTES), scale * lines


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
