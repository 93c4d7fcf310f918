"""Tokenization of chunks of text, in this process or by all workers, and its statistics."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.text_files import Chunk
from mae_lm_fairseq.text.tokenizer import EOS, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path

# Chunks in flight per worker: enough to keep it busy, few enough to keep memory small.
_AHEAD = 3
# Lines of a chunk whose unknown characters are counted for the error message, as that means encoding them again.
_LINES_WITH_UNKNOWN = 20


@dataclass(frozen=True)
class EncodedBlock:
    """Encoded chunk.

    Attributes:
        tokens: int32[sum of sizes].
        sizes: int32[lines], including each line's ``</s>``.
        unknown: counts of the characters that became ``<unk>``, in the first such lines.
        lost_joiners: number of joiners that the tokenizer has dropped or replaced by a space.
    """

    tokens: np.ndarray
    sizes: np.ndarray
    unknown: Counter[str]
    lost_joiners: int = 0


SEPARATOR = EncodedBlock(np.array([EOS], dtype=np.int32), np.ones(1, dtype=np.int32), Counter())
"""A blank line, which separates documents."""

Encode = Callable[[Iterable[Chunk], Path], Iterator[tuple[Chunk, EncodedBlock]]]
"""Yields the chunks with their encodings by the tokenizer in a directory, in order."""


@dataclass
class RunningStatistics:
    """Statistics of text while it is written.

    Attributes:
        counts: int64[symbols], number of occurrences of each symbol of fairseq's dictionary.
        lines: number of lines, including blank lines added between files.
        tokens: number of tokens, ``</s>`` included.
        documents: number of documents (runs of lines with text) so far.
        in_document: whether the last line had text.
        unknown: counts of the characters that became ``<unk>``.
        malformed: number of malformed records that were skipped.
        lost_joiners: number of joiners that the tokenizer has dropped or replaced by a space.
    """

    counts: np.ndarray
    lines: int = 0
    tokens: int = 0
    documents: int = 0
    in_document: bool = False
    unknown: Counter[str] = field(default_factory=Counter)
    malformed: int = 0
    lost_joiners: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "RunningStatistics":
        """Return those of no text."""
        return cls(np.zeros(len(tokenizer.symbols), dtype=np.int64))

    def add(self, block: EncodedBlock, lines: int):
        """Add a block that encodes ``lines`` lines."""
        has_text = block.sizes > 1
        self.documents += int((has_text & ~np.concatenate(([self.in_document], has_text[:-1]))).sum())
        self.in_document = bool(has_text[-1])
        self.lines += lines
        self.tokens += int(block.sizes.sum())
        self.counts += np.bincount(block.tokens, minlength=len(self.counts))
        self.unknown.update(block.unknown)
        self.lost_joiners += block.lost_joiners

    def unknown_tokens(self, tokenizer: Tokenizer) -> int:
        """Return the number of tokens for unknown characters."""
        return int(self.counts[list(tokenizer.unknown_ids)].sum())


@lru_cache(maxsize=1)
def load_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer in a directory; each process reads it once."""
    return open_tokenizer_path(directory)


def encode_here(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, EncodedBlock]]:
    """Encode chunks in this process."""
    for chunk in chunks:
        yield chunk, _encode_chunk(chunk, tokenizer)


def encode_by_all(executor: Executor, workers: int) -> Encode:
    """Return a function that lets all workers encode chunks, with a bounded number of chunks in memory."""

    def encode(chunks: Iterable[Chunk], tokenizer: Path) -> Iterator[tuple[Chunk, EncodedBlock]]:
        pending = deque()
        for chunk in chunks:
            pending.append((chunk, executor.submit(_encode_chunk, chunk, tokenizer)))
            if len(pending) > _AHEAD * workers:
                first, future = pending.popleft()
                yield first, future.result()
        for last, future in pending:
            yield last, future.result()

    return encode


def _encode_chunk(chunk: Chunk, tokenizer: Path) -> EncodedBlock:
    return encode_lines(chunk.lines(), load_tokenizer(tokenizer))


def encode_lines(lines: list[str], tokenizer: Tokenizer) -> EncodedBlock:
    """Encode the lines of a chunk. A line of only white space is blank."""
    # Byte-level BPE has tokens for white space, but only a line without tokens ends a document.
    lines = [line if line.strip() else "" for line in lines]
    tokens, sizes = tokenizer.encode_block(lines)
    places = np.flatnonzero(np.isin(tokens, tokenizer.unknown_ids))
    with_unknown = np.unique(np.searchsorted(np.cumsum(sizes), places, side="right"))[:_LINES_WITH_UNKNOWN]
    unknown = tokenizer.unknown_characters([lines[line] for line in with_unknown])
    lost = sum(line.count(joiner) for joiner in tokenizer.lost_joiners for line in lines)
    return EncodedBlock(tokens, sizes, unknown, lost)
