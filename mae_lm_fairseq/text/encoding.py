"""Tokenization of chunks of text, in this process or by all workers, and its statistics."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.text.manifest import SplitStatistics
from mae_lm_fairseq.text.text_files import Chunk
from mae_lm_fairseq.text.tokenizer import EOS, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path

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
