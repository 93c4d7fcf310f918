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
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.text.corpus import RecordOptions, divide, read_stretch
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.text.manifest import SplitStatistics, with_rate
from mae_lm_fairseq.text.text_files import Chunk, Stretch
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


class EncodedLines(NamedTuple):
    """Encoded lines.

    Attributes:
        tokens: int32[sum of sizes].
        sizes: int32[lines], including each line's ``</s>``.
    """

    tokens: np.ndarray
    sizes: np.ndarray


SEPARATOR = EncodedLines(np.array([EOS], dtype=np.int32), np.ones(1, dtype=np.int32))
"""A blank line, which separates documents."""

Encode = Callable[[Iterable[Chunk], Path], Iterator[tuple[Chunk, EncodedLines]]]
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

    def add(self, encoded: EncodedLines):
        """Add encoded lines."""
        has_text = encoded.sizes > 1
        self.documents += int(document_starts(has_text, self.in_document).sum())
        self.in_document = bool(has_text[-1])
        self.lines += len(encoded.sizes)
        self.tokens += int(encoded.sizes.sum())
        self.counts += np.bincount(encoded.tokens, minlength=len(self.counts))

    def of_split(self) -> SplitStatistics:
        """Return the statistics for a manifest."""
        counts = {
            "documents": self.documents,
            "lines": self.lines,
            "tokens_in": self.tokens,
            "tokens_out": self.tokens,
            "unk": int(self.counts[self._unknown_ids].sum()),
            "malformed": self.malformed,
            "lost_joiners": self.lost_joiners,
        }
        return with_rate(counts)


def document_starts(has_text: np.ndarray, in_document: bool) -> np.ndarray:
    """Return bool[lines]: which lines begin a document.

    Args:
        has_text: bool[lines], which lines are not blank.
        in_document: whether the line before them has text.
    """
    follows_text = np.concatenate(([in_document], has_text[:-1]))
    return has_text & ~follows_text


@lru_cache(maxsize=1)
def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer in a directory; each process reads it once."""
    return open_tokenizer_path(directory)


def encode_here(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, EncodedLines]]:
    """Encode chunks in this process."""
    for chunk in chunks:
        yield chunk, _encode_chunk(chunk, tokenizer)


def encode_by_all(executor: Executor, workers: int) -> Encode:
    """Return a function that lets all workers encode chunks, with a bounded number of chunks in memory."""

    def encode(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, EncodedLines]]:
        pending = deque()
        for chunk in chunks:
            pending.append((chunk, executor.submit(_encode_chunk, chunk, tokenizer)))
            if len(pending) > _AHEAD * workers:
                first, future = pending.popleft()
                yield first, future.result()
        for last, future in pending:
            yield last, future.result()

    return encode


def _encode_chunk(chunk: Chunk, tokenizer: Path) -> EncodedLines:
    return EncodedLines(*load_tokenizer(tokenizer).encode_block(chunk.lines()))


@dataclass(frozen=True)
class PartSettings:
    """The settings of all parts of a preparation.

    Attributes:
        directory: directory of the parts, on a file system that all machines share.
        tokenizer: directory of the tokenizer in it.
        fingerprint: fingerprints of the tokenizer and its dictionary.
        record_options: how records are read.
    """

    directory: Path
    tokenizer: Path
    fingerprint: str
    record_options: RecordOptions


@dataclass(frozen=True)
class Part:
    """Some consecutive lines of a split.

    Attributes:
        name: name of its directory; it identifies text, tokenizer and ``--text-field``.
        stretches: the stretches of the corpus in order.
        size: estimated number of bytes of text.
        is_large: whether the part is much larger than others, because its file cannot be divided.
    """

    name: str
    stretches: tuple[Stretch, ...]
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


class FinishedPart(NamedTuple):
    """The directory of a finished part, and its record."""

    directory: Path
    record: PartRecord


def plan_parts(split: str, files: Iterable[Path], settings: PartSettings) -> list[Part]:
    """Divide the files of a split into parts.

    Raises:
        UserError: if a file cannot be read.
    """
    files = [path.absolute() for path in files]
    bytes_of_files = sum(path.stat().st_size for path in files)
    usual_size = max(PART_BYTES, bytes_of_files // MOST_PARTS)

    groups = []
    size = usual_size
    for stretch in divide(files, usual_size):
        if max(size, stretch.size) >= usual_size:
            groups.append([])
            size = 0
        groups[-1].append(stretch)
        size += stretch.size

    parts = []
    for number, stretches in enumerate(groups):
        size = sum(stretch.size for stretch in stretches)
        name = keyed(f"{split}-{number:05}", _depends_on(stretches, settings))
        parts.append(Part(name, tuple(stretches), size, size > _LARGE * usual_size))
    return parts


def _depends_on(stretches: list[Stretch], settings: PartSettings) -> str:
    """Return what the content of a part depends on, as text."""
    text = f"{settings.fingerprint} {settings.record_options.text_field!r}"
    for stretch in stretches:
        path, status = str(stretch.path), stretch.path.stat()
        text += repr((path, status.st_size, status.st_mtime_ns, stretch.start, stretch.end))
    return text


def encode_part(part: Part, settings: PartSettings, encode: Encode = encode_here) -> tuple[PartRecord, bool]:
    """Make a part, unless a valid one exists.

    Returns:
        The record of the part, and whether it is from an earlier run.

    Raises:
        UserError: if the corpus or the directory cannot be read, text is not UTF-8, or a record is malformed.
    """

    def find(path: Path) -> PartRecord | None:
        record = _read_record(path)
        if record is not None and record.statistics.malformed and not settings.record_options.skip_malformed:
            return None
        return record

    return find_or_make(settings.directory / part.name, partial(_write_part, part, settings, encode), find)


def _write_part(part: Part, settings: PartSettings, encode: Encode, directory: Path) -> PartRecord:
    tokenizer = load_tokenizer(settings.tokenizer)
    statistics = RunningStatistics(tokenizer)
    begins_document = False
    chunks = chain.from_iterable(read_stretch(stretch, settings.record_options) for stretch in part.stretches)
    with DataBinWriter(directory / "tokens", len(tokenizer.symbols)) as writer:
        for chunk, encoded in encode(chunks, settings.tokenizer):
            if chunk.begins_document and statistics.in_document:
                writer.write(*SEPARATOR)
                statistics.add(SEPARATOR)
            if len(encoded.sizes):
                if not statistics.lines:
                    begins_document = chunk.begins_document
                writer.write(*encoded)
                statistics.add(encoded)
            statistics.malformed += chunk.malformed
            for joiner in tokenizer.lost_joiners:
                statistics.lost_joiners += chunk.data.count(joiner.encode())
    record = PartRecord(begins_document, statistics.of_split(), _checksums(directory))
    write_record(directory / _RECORD, asdict(record))
    return record


def _read_record(directory: Path) -> PartRecord | None:
    try:
        record = read_record(directory / _RECORD, lambda content: typed(content, PartRecord))
        is_intact = record.sha256 == _checksums(directory)
    except UserError:
        return None
    return record if is_intact else None


def _checksums(directory: Path) -> dict[str, str]:
    return {name: file_sha256(directory / name) for name in ("tokens.bin", "tokens.idx")}
