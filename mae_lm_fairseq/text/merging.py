"""Finished parts to data-bins, one for each shard."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import starmap
from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.data_bin import DataBinWriter, read_lines
from mae_lm_fairseq.text.parts import SEPARATOR, EncodedLines, FinishedPart, RunningStatistics, document_starts
from mae_lm_fairseq.text.tokenizer import Tokenizer

SEED = 1


def merge_parts(parts: list[FinishedPart], prefixes: list[Path], tokenizer: Tokenizer) -> list[RunningStatistics]:
    """Write the documents of parts to one or several data-bins.

    Of each N consecutive documents, each of N data-bins receives one, in an order drawn from :data:`SEED`. So the
    result depends on the documents and on N only. In each data-bin, documents keep their order.

    Args:
        parts: the parts in order.
        prefixes: prefixes of the data-bins.

    Returns:
        The statistics of each data-bin; the first one has all malformed records and lost joiners.
    """
    statistics = [RunningStatistics(tokenizer) for _ in prefixes]
    dealer = _Dealer(len(prefixes))
    with ExitStack() as stack:
        writers = [stack.enter_context(DataBinWriter(prefix, len(tokenizer.symbols))) for prefix in prefixes]
        for encoded in _all_lines(parts):
            shards = dealer.deal(encoded.sizes > 1)
            for shard, of_shard in _split(encoded, shards):
                writers[shard].write(*of_shard)
                statistics[shard].add(of_shard)
    statistics[0].malformed = sum(part.record.statistics.malformed for part in parts)
    statistics[0].lost_joiners = sum(part.record.statistics.lost_joiners for part in parts)
    return statistics


def _all_lines(parts: list[FinishedPart]) -> Iterator[EncodedLines]:
    in_document = False
    for part in parts:
        if part.record.begins_document and in_document:
            yield SEPARATOR
            in_document = False
        for encoded in starmap(EncodedLines, read_lines(part.directory / "tokens")):
            yield encoded
            in_document = bool(encoded.sizes[-1] > 1)


def _split(encoded: EncodedLines, shards: np.ndarray) -> Iterator[tuple[int, EncodedLines]]:
    """Yield the lines of each shard, given the shard of each line."""
    # Sorting small integers takes linear time.
    sizes = encoded.sizes[np.argsort(shards, kind="stable")]
    shard_of_token = np.repeat(shards, encoded.sizes)
    tokens = encoded.tokens[np.argsort(shard_of_token, kind="stable")]
    counts = np.bincount(shards)
    line = token = 0
    for shard in np.flatnonzero(counts):
        sizes_inside = sizes[line : line + counts[shard]]
        end = token + int(sizes_inside.sum())
        yield int(shard), EncodedLines(tokens[token:end], sizes_inside)
        line += counts[shard]
        token = end


class _Dealer:
    """Deals documents out to shards like cards."""

    _ROUNDS = 1 << 12

    def __init__(self, shards: int):
        self._deck = np.tile(np.arange(shards, dtype=np.uint16), (self._ROUNDS, 1))
        self._generator = np.random.default_rng(SEED)
        self._cards = np.zeros(0, dtype=np.uint16)
        self._shard = np.uint16(0)
        self._in_document = False

    def deal(self, has_text: np.ndarray) -> np.ndarray:
        """Return the shard of each line. Blank lines belong to the document before them.

        Args:
            has_text: bool[lines], which of the next lines are not blank.
        """
        begins = document_starts(has_text, self._in_document)
        count = int(begins.sum())
        while len(self._cards) < count:
            shuffled = self._generator.permuted(self._deck, axis=1).ravel()
            self._cards = np.concatenate((self._cards, shuffled))
        dealt = np.concatenate(([self._shard], self._cards[:count]))
        self._cards = self._cards[count:]
        shards = dealt[np.cumsum(begins)]
        self._shard = shards[-1]
        self._in_document = bool(has_text[-1])
        return shards
