"""Parts: the unit of work of a preparation.

A part is some consecutive lines of a split, encoded into a small data-bin. The corpus alone determines the parts, and
the bytes of a part do not depend on where, when or how often it is made. A part is written under a temporary name and
renamed, so a part that exists is complete.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mae_lm_fairseq.text.corpus import Piece, Reading, divide, read_piece
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.text.encoding import SEPARATOR, Encode, RunningStatistics, encode_here, load_tokenizer
from mae_lm_fairseq.text.manifest import SplitStatistics
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256

PART_BYTES = 1 << 24
MOST_PARTS = 4096
_LARGE = 4
"""Size of a large part in sizes of an ordinary one."""
_RECORD = "part.json"


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
    """Some consecutive lines of a split.

    Attributes:
        name: name of its directory; it identifies text, tokenizer and ``--text-field``.
        pieces: the pieces of the corpus in order.
        size: estimated number of bytes of text.
        is_large: whether the part is much larger than others, because its file cannot be divided.
    """

    name: str
    pieces: tuple[Piece, ...]
    size: int
    is_large: bool


@dataclass(frozen=True)
class PartRecord:
    """Statistics and checksums of a finished part.

    Attributes:
        begins_document: whether the part does not continue the document of the part before it.
        statistics: statistics of its lines.
        sha256: SHA-256 of ``tokens.bin`` and ``tokens.idx``.
    """

    begins_document: bool
    statistics: SplitStatistics
    sha256: dict[str, str]


def plan_parts(split: str, files: Iterable[Path], job: Job) -> list[Part]:
    """Divide the files of a split into parts.

    Raises:
        UserError: if a file cannot be read.
    """
    files = [path.absolute() for path in files]
    size = max(PART_BYTES, sum(path.stat().st_size for path in files) // MOST_PARTS)
    groups, total = [], size
    for piece in divide(files, job.reading, size):
        if max(total, piece.size) >= size:
            groups.append([])
            total = 0
        groups[-1].append(piece)
        total += piece.size
    parts = []
    for number, pieces in enumerate(groups):
        text = sum(piece.size for piece in pieces)
        parts.append(Part(f"{split}-{number:05}-{_key(pieces, job)}", tuple(pieces), text, text > _LARGE * size))
    return parts


def _key(pieces: list[Piece], job: Job) -> str:
    """Return a digest of what the bytes of a part depend on."""
    digest = hashlib.sha256(f"{job.fingerprint} {job.reading.text_field!r}".encode())
    for piece in pieces:
        status = piece.path.stat()
        content = (str(piece.path), status.st_size, status.st_mtime_ns, piece.start, piece.end)
        digest.update(repr(content).encode())
    return digest.hexdigest()[:12]


def encode_part(part: Part, job: Job, encode: Encode = encode_here) -> tuple[PartRecord, bool]:
    """Make a part, unless a valid one exists.

    Returns:
        The record of the part, and whether it is from an earlier run.

    Raises:
        UserError: if the corpus or the directory cannot be read, text is not UTF-8, or a record is malformed.
    """
    destination = job.directory / part.name
    found = _read_record(destination)
    if found is not None and (job.reading.skip_malformed or not found.statistics.malformed):
        return found, True
    with tempfile.TemporaryDirectory(prefix=f".{part.name}.", dir=job.directory, ignore_cleanup_errors=True) as name:
        record = _write_part(part, job, encode, Path(name))
        if found is None and destination.exists():
            shutil.rmtree(destination)  # damaged
        rename_new(Path(name), destination)
    return record, False


def _write_part(part: Part, job: Job, encode: Encode, directory: Path) -> PartRecord:
    """Write a part. A blank line is added between two records or files, unless the first one ends with one."""
    tokenizer = load_tokenizer(job.tokenizer)
    statistics, begins_document = RunningStatistics(tokenizer), False
    chunks = (chunk for piece in part.pieces for chunk in read_piece(piece, job.reading))
    with DataBinWriter(directory / "tokens", len(tokenizer.symbols)) as writer:
        for chunk, block in encode(chunks, job.tokenizer):
            if chunk.begins_document and statistics.in_document:
                writer.write(*SEPARATOR)
                statistics.add(SEPARATOR)
            if len(block.sizes):
                begins_document = begins_document if statistics.lines else chunk.begins_document
                writer.write(*block)
                statistics.add(block)
            statistics.malformed += chunk.malformed
            statistics.lost_joiners += sum(chunk.data.count(joiner.encode()) for joiner in tokenizer.lost_joiners)
    record = PartRecord(begins_document, statistics.of_split(), _checksums(directory))
    (directory / _RECORD).write_text(json.dumps(asdict(record)), encoding="utf-8")
    return record


def rename_new(directory: Path, destination: Path):
    """Rename a directory, unless the destination exists because another process was faster."""
    try:
        os.rename(directory, destination)
    except OSError:
        if not destination.exists():
            raise


def _read_record(directory: Path) -> PartRecord | None:
    """Return the record of a finished part in a directory; None unless its checksums are right."""
    try:
        fields = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
        record = PartRecord(**fields | {"statistics": SplitStatistics(**fields["statistics"])})
        return record if record.sha256 == _checksums(directory) else None
    except (OSError, ValueError, LookupError, TypeError, UserError):
        return None


def _checksums(directory: Path) -> dict[str, str]:
    return {name: file_sha256(directory / name) for name in ("tokens.bin", "tokens.idx")}
