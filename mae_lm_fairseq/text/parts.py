"""Parts: the unit of work of a preparation, and their encoding in this process or by all workers.

A part is some consecutive lines of a split, encoded into a small data-bin. The corpus alone determines the parts, and
the bytes of a part do not depend on where, when or how often it is made. A part is written under a temporary name and
renamed, so a part that exists is complete.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.text.corpus import Piece, Reading, divide, read_piece
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.text.manifest import SplitStatistics
from mae_lm_fairseq.text.text_files import Chunk
from mae_lm_fairseq.text.tokenizer import EOS, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_record, write_record
from mae_lm_fairseq.utils.made import find_or_make, keyed
from mae_lm_fairseq.utils.typed import typed

PART_BYTES = 1 << 24
MOST_PARTS = 4096
_LARGE = 4
"""Size of a large part in sizes of an ordinary one."""
_RECORD = "part.json"
# Chunks in flight per worker: enough to keep it busy, few enough to keep memory small.
_AHEAD = 3


class Block(NamedTuple):
    """Encoded lines.

    Attributes:
        tokens: int32[sum of sizes].
        sizes: int32[lines], including each line's ``</s>``.
    """

    tokens: np.ndarray
    sizes: np.ndarray


SEPARATOR = Block(np.array([EOS], dtype=np.int32), np.ones(1, dtype=np.int32))
"""A blank line, which separates documents."""

Encode = Callable[[Iterable[Chunk], Path], Iterator[tuple[Chunk, Block]]]
"""Yields the chunks with their encodings by the tokenizer in a directory, in order."""


class RunningStatistics:
    """Statistics of text while it is written; those that a manifest has are described there.

    Attributes:
        counts: int64[symbols], number of occurrences of each symbol of fairseq's dictionary.
        in_document: whether the last line had text.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.counts = np.zeros(len(tokenizer.symbols), dtype=np.int64)
        self.lines = self.tokens = self.documents = self.malformed = self.lost_joiners = 0
        self.in_document = False
        self._unknown_ids = list(tokenizer.unknown_ids)

    def add(self, block: Block):
        """Add an encoded block of lines."""
        has_text = block.sizes > 1
        self.documents += int((has_text & ~np.concatenate(([self.in_document], has_text[:-1]))).sum())
        self.in_document = bool(has_text[-1])
        self.lines += len(block.sizes)
        self.tokens += int(block.sizes.sum())
        self.counts += np.bincount(block.tokens, minlength=len(self.counts))

    def of_split(self) -> SplitStatistics:
        """Return the statistics for a manifest."""
        unk = int(self.counts[self._unknown_ids].sum())
        counts = (self.documents, self.lines, self.tokens, self.tokens, unk)
        rate = unk / max(1, self.tokens - self.lines)
        return SplitStatistics(*counts, rate, self.malformed, self.lost_joiners)


@lru_cache(maxsize=1)
def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer in a directory; each process reads it once."""
    return open_tokenizer_path(directory)


def encode_here(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, Block]]:
    """Encode chunks in this process."""
    for chunk in chunks:
        yield chunk, _encode_chunk(chunk, tokenizer)


def encode_by_all(executor: Executor, workers: int) -> Encode:
    """Return a function that lets all workers encode chunks, with a bounded number of chunks in memory."""

    def encode(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, Block]]:
        pending = deque()
        for chunk in chunks:
            pending.append((chunk, executor.submit(_encode_chunk, chunk, tokenizer)))
            if len(pending) > _AHEAD * workers:
                first, future = pending.popleft()
                yield first, future.result()
        for last, future in pending:
            yield last, future.result()

    return encode


def _encode_chunk(chunk: Chunk, tokenizer: Path) -> Block:
    return Block(*load_tokenizer(tokenizer).encode_block(chunk.lines()))


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
    sha256: Mapping[str, str]


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
        name = keyed(f"{split}-{number:05}", _depends_on(pieces, job))
        parts.append(Part(name, tuple(pieces), text, text > _LARGE * size))
    return parts


def _depends_on(pieces: list[Piece], job: Job) -> str:
    """Return what the content of a part depends on, as text."""
    text = f"{job.fingerprint} {job.reading.text_field!r}"
    for piece in pieces:
        status = piece.path.stat()
        text += repr((str(piece.path), status.st_size, status.st_mtime_ns, piece.start, piece.end))
    return text


def encode_part(part: Part, job: Job, encode: Encode = encode_here) -> tuple[PartRecord, bool]:
    """Make a part, unless a valid one exists.

    Returns:
        The record of the part, and whether it is from an earlier run.

    Raises:
        UserError: if the corpus or the directory cannot be read, text is not UTF-8, or a record is malformed.
    """

    def find(path: Path) -> PartRecord | None:
        record = _read_record(path)
        if record is not None and record.statistics.malformed and not job.reading.skip_malformed:
            return None
        return record

    return find_or_make(job.directory / part.name, partial(_write_part, part, job, encode), find)


def _write_part(part: Part, job: Job, encode: Encode, directory: Path) -> PartRecord:
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
    write_record(directory / _RECORD, asdict(record))
    return record


def _read_record(directory: Path) -> PartRecord | None:
    try:
        record = read_record(directory / _RECORD, lambda content: typed(content, PartRecord))
        return record if record.sha256 == _checksums(directory) else None
    except UserError:
        return None


def _checksums(directory: Path) -> dict[str, str]:
    return {name: file_sha256(directory / name) for name in ("tokens.bin", "tokens.idx")}
