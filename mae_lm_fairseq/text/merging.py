"""Finished parts to data-bins, one for each shard."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import starmap
from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.data_bin import DataBinWriter, read_lines
from mae_lm_fairseq.text.parts import SEPARATOR, Block, PartRecord, RunningStatistics
from mae_lm_fairseq.text.tokenizer import Tokenizer

SEED = 1


def merge_parts(
    parts: list[tuple[Path, PartRecord]], prefixes: list[Path], tokenizer: Tokenizer
) -> list[RunningStatistics]:
    """Write the documents of parts to one or several data-bins.

    Of each N consecutive documents, each of N data-bins receives one, in an order drawn from :data:`SEED`. So the
    result depends on the documents and on N only. In each data-bin, documents keep their order.

    Args:
        parts: directory and record of each part, in order.
        prefixes: prefixes of the data-bins.

    Returns:
        The statistics of each data-bin; the first one has all malformed records and lost joiners.
    """
    statistics = [RunningStatistics(tokenizer) for _ in prefixes]
    dealer = _Dealer(len(prefixes))
    with ExitStack() as stack:
        writers = [stack.enter_context(DataBinWriter(prefix, len(tokenizer.symbols))) for prefix in prefixes]
        for tokens, sizes in _all_lines(parts):
            shards = dealer.deal(sizes > 1)
            for shard, block in _split(tokens, sizes, shards):
                writers[shard].write(*block)
                statistics[shard].add(block)
    statistics[0].malformed = sum(record.statistics.malformed for _, record in parts)
    statistics[0].lost_joiners = sum(record.statistics.lost_joiners for _, record in parts)
    return statistics


def _all_lines(parts: list[tuple[Path, PartRecord]]) -> Iterator[Block]:
    in_document = False
    for directory, record in parts:
        if record.begins_document and in_document:
            yield SEPARATOR
            in_document = False
        for block in starmap(Block, read_lines(directory / "tokens")):
            yield block
            in_document = bool(block.sizes[-1] > 1)


def _split(tokens: np.ndarray, sizes: np.ndarray, shards: np.ndarray) -> Iterator[tuple[int, Block]]:
    # Sorting small integers takes linear time.
    lines = np.argsort(shards, kind="stable")
    tokens = tokens[np.argsort(np.repeat(shards, sizes), kind="stable")]
    sizes, found = sizes[lines], np.bincount(shards)
    line = token = 0
    for shard in np.flatnonzero(found):
        inside = sizes[line : line + found[shard]]
        line, end = line + found[shard], token + int(inside.sum())
        yield int(shard), Block(tokens[token:end], inside)
        token = end


class _Dealer:
    """Deals documents out to shards like cards."""

    _ROUNDS = 1 << 12

    def __init__(self, shards: int):
        self._deck = np.tile(np.arange(shards, dtype=np.uint16), (self._ROUNDS, 1))
        self._generator = np.random.default_rng(SEED)
        self._cards = np.zeros(0, dtype=np.uint16)
        self._shard, self._in_document = np.uint16(0), False

    def deal(self, has_text: np.ndarray) -> np.ndarray:
        """Return the shard of each line. Blank lines belong to the document before them.

        Args:
            has_text: bool[lines], which of the next lines are not blank.
        """
        begins = has_text & ~np.concatenate(([self._in_document], has_text[:-1]))
        count = int(begins.sum())
        while len(self._cards) < count:
            self._cards = np.concatenate((self._cards, self._generator.permuted(self._deck, axis=1).ravel()))
        dealt, self._cards = self._cards[:count], self._cards[count:]
        shards = np.concatenate(([self._shard], dealt))[np.cumsum(begins)]
        self._shard, self._in_document = shards[-1], bool(has_text[-1])
        return shards
