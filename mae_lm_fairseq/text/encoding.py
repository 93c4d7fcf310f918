"""Tokenization of text files into a data-bin, with several processes and bounded memory.

The calling process reads and writes, workers encode. Chunks are written in the order in which they were read, so the
result does not depend on the number of workers.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import numpy as np

from mae_lm_fairseq.text.corpus import Piece, Reading, read_piece
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.text.text_files import Chunk, split_lines
from mae_lm_fairseq.text.tokenizer import EOS, Tokenizer
from mae_lm_fairseq.utils.workers import WorkerPool, worker_died

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


@dataclass
class RunningStatistics:
    """Statistics of a split while it is written.

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


class EncodingPool(WorkerPool):
    """Executor whose workers have loaded a tokenizer.

    Args:
        tokenizer: encodes the lines.
        workers: number of processes.
    """

    def __init__(self, tokenizer: Tokenizer, workers: int):
        super().__init__(workers, _load_tokenizer, (tokenizer,))
        self._ahead = _AHEAD * workers

    def encode(self, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, EncodedBlock]]:
        """Yield the chunks with their encodings, in order, with a bounded number of chunks in memory.

        Raises:
            UserError: if a line is not UTF-8, or a worker died.
        """
        pending = deque()
        for chunk in chunks:
            pending.append((chunk, self._submit_chunk(chunk)))
            if len(pending) > self._ahead:
                yield _wait(*pending.popleft())
        while pending:
            yield _wait(*pending.popleft())

    def _submit_chunk(self, chunk: Chunk) -> Future:
        try:
            return self.submit(_encode, chunk.data)
        except BrokenProcessPool:
            raise worker_died() from None


def _wait(chunk: Chunk, future: Future) -> tuple[Chunk, EncodedBlock]:
    try:
        return chunk, future.result()
    except UnicodeDecodeError as error:
        raise chunk.not_utf8(error) from None
    except BrokenProcessPool:
        raise worker_died() from None


def encode_pieces(
    pieces: Iterable[Piece],
    reading: Reading,
    symbols: int,
    encode: Callable[[Iterable[Chunk]], Iterable[tuple[Chunk, EncodedBlock]]],
    writer: DataBinWriter,
    progress: Callable[[int], object],
) -> RunningStatistics:
    """Write all lines of pieces of a corpus. A blank line is written as a single ``</s>``.

    A blank line is added between two records, and between two files, unless the first one ends with one.

    Args:
        pieces: pieces of the corpus.
        reading: how records are read.
        symbols: number of symbols in fairseq's dictionary, without ``<mask>``.
        encode: encodes chunks in order, such as :meth:`EncodingPool.encode`.
        writer: receives the lines in order.
        progress: called repeatedly with the number of bytes on disk that have been processed since the last call.

    Raises:
        UserError: if a file cannot be read or is not UTF-8, a record is malformed, or a worker died.
    """
    statistics = RunningStatistics(np.zeros(symbols, dtype=np.int64))
    done = 0
    for chunk, block in encode(chunk for piece in pieces for chunk in read_piece(piece, reading)):
        if chunk.first_line == 1:
            done = 0
        if chunk.begins_document and statistics.in_document:
            writer.write(SEPARATOR.tokens, SEPARATOR.sizes)
            statistics.add(SEPARATOR, 1)
        if len(block.sizes):
            writer.write(block.tokens, block.sizes)
            statistics.add(block, chunk.line_count())
        statistics.malformed += chunk.malformed
        progress(chunk.position - done)
        done = chunk.position
    return statistics


_tokenizer: Tokenizer


def _load_tokenizer(tokenizer: Tokenizer):
    global _tokenizer
    _tokenizer = tokenizer


def _encode(data: bytes) -> EncodedBlock:
    return encode_lines(split_lines(data), _tokenizer)


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
