"""The tokenizer interface: text to fairseq's ids, and back.

fairseq assigns 0 to 3 to ``<s> <pad> </s> <unk>``, the following ids to the lines of ``dict.txt``, and the last id to
``<mask>``. A tokenizer library has an order of its own. Each implementation maps it to fairseq's by a table, and all
ids outside of the implementations are fairseq's.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_bytes

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
BOS, PAD, EOS, UNK = range(len(SPECIALS))
JOINERS = ("\u200c", "\u200d")
"""The zero-width non-joiner and joiner, which distinguish words, for example in Persian and Hindi."""


class Tokenizer(ABC):
    """A tokenizer that returns fairseq's ids. It can be pickled, and then carries the content of its files.

    Attributes:
        FILES: names of the files that hold a tokenizer of this kind; the first one identifies it.
        LIBRARY: name of the package that does the work.
        path: path of the first file, for error messages.
        files: content of the files by name, as they are kept in a data-bin or bundle.
        symbols: fairseq's dictionary in the order of ids, without ``<mask>``.
        unknown_ids: ids of the tokens for unknown characters: ``<unk>``, and the library's own if that is another one.

    Args:
        path: path of the first file.
        files: content of the files, in the order of ``FILES``.
        symbols: fairseq's dictionary.
        fairseq_ids: int[library's vocabulary], fairseq's id of each of the library's ids.

    Raises:
        UserError: if ``dict.txt`` cannot represent a symbol.
    """

    FILES: ClassVar[tuple[str, ...]]
    LIBRARY: ClassVar[str]
    unknown_ids: tuple[int, ...] = (UNK,)

    def __init__(self, path: str | Path, files: Mapping[str, bytes], symbols: Sequence[str], fairseq_ids: np.ndarray):
        self.path = Path(path)
        self.files = dict(files)
        self.symbols = list(symbols)
        self._fairseq_ids = fairseq_ids.astype(np.int32)
        for piece in self.pieces:
            if piece in (*SPECIALS, MASK) or piece.split() != [piece]:
                raise UserError(f"{path}: dict.txt cannot represent its piece {piece!r}; train it without")

    def __reduce__(self):
        return type(self), (self.path, *self.files.values())

    @property
    def pieces(self) -> list[str]:
        """The symbols of ``dict.txt`` in order; the first has id 4."""
        return self.symbols[len(SPECIALS) :]

    @property
    def mask(self) -> int:
        """Id of ``<mask>``."""
        return len(self.symbols)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files except ``dict.txt``, which also holds counts, in hexadecimal."""
        contents = [content for name, content in self.files.items() if name != DICTIONARY]
        return hashlib.sha256(b"".join(contents)).hexdigest()

    @property
    def exported_ids(self) -> np.ndarray:
        """int64[vocabulary with ``<mask>``]: the id of each token in an exported tokenizer."""
        return np.arange(self.mask + 1)

    @abstractmethod
    def library_ids(self, lines: list[str]) -> list[list[int]]:
        """Return what the library makes of each line, in its own ids. Special tokens in the text are ordinary text."""

    @abstractmethod
    def encode_masked(self, text: str) -> list[int]:
        """Encode a text without ``</s>``, with the mask token for each ``<mask>``."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of fairseq ids, with ``<mask>`` but without ``<s> <pad> </s>``."""

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text without ``</s>``, and return the characters that the library made each token of.

        Returns:
            ids: int32[tokens], fairseq's ids.
            offsets: int64[tokens, 2], start and end in ``text``. Where a character becomes several tokens, they either
                all have it, or the last one has it and the others are empty.
        """

    @abstractmethod
    def normalize(self, text: str) -> str:
        """Return a text as the library's normalizer changes it."""

    @cached_property
    def lost_joiners(self) -> tuple[str, ...]:
        """The :data:`JOINERS` that the normalizer drops or replaces by a space."""
        lost = []
        for joiner in JOINERS:
            normalized = self.normalize(f"a{joiner}b")
            if joiner not in normalized:
                lost.append(joiner)
        return tuple(lost)

    def unknown_texts(self, lines: list[str]) -> Counter[str]:
        """Count the texts that became ``<unk>``: characters, or words for WordPiece."""
        texts = Counter()
        for line in lines:
            ids, offsets = self.encode_with_offsets(line)
            is_unknown = np.isin(ids, self.unknown_ids)
            texts.update(line[start:end].strip() for start, end in offsets[is_unknown])
        return texts

    def word_starts(self) -> np.ndarray:
        """Return bool[vocabulary with ``<mask>``]: subwords marked as the start of a word, and special tokens."""
        starts = np.ones(self.mask + 1, dtype=bool)
        for index in range(len(SPECIALS), self.mask):
            starts[index] = self.token_text(index)[:1].isspace()
        return starts

    @abstractmethod
    def token_text(self, index: int) -> str:
        """Return a token as text, with a leading space if it is marked as the start of a word."""

    def encode_lines(self, lines: list[str]) -> list[np.ndarray]:
        """Encode each line to an int32 array of fairseq ids, without ``</s>`` and without truncation."""
        return [self._fairseq_ids[ids] for ids in self.library_ids(lines)]

    def encode_words(self, words: list[str]) -> list[np.ndarray]:
        """Encode each word on its own, as after a space, to one or more of fairseq's ids.

        A word of which the tokenizer leaves nothing, such as an invisible character, becomes ``<unk>``.
        """
        unknown = np.array([UNK], dtype=np.int32)
        return [self._fairseq_ids[ids] if ids else unknown for ids in self.library_ids_of_words(words)]

    @abstractmethod
    def library_ids_of_words(self, words: list[str]) -> list[list[int]]:
        """Return what the library makes of each word on its own, as after a space, in its own ids."""

    def encode_block(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode all lines into one array, with ``</s>`` after each line. A line of only white space is blank.

        Returns:
            tokens: int32[sum of sizes], fairseq ids.
            sizes: int32[lines], tokens of each line, ``</s>`` included.
        """
        # Byte-level BPE has tokens for white space, but only a line without tokens ends a document.
        encoded = self.library_ids([line if line.strip() else "" for line in lines])
        sizes = 1 + np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
        tokens = np.full(sizes.sum(), EOS, dtype=np.int32)
        is_inside = np.ones(len(tokens), dtype=bool)
        is_inside[np.cumsum(sizes) - 1] = False
        library_ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int32)
        tokens[is_inside] = self._fairseq_ids[library_ids]
        return tokens, sizes

    def save(self, directory: str | Path):
        """Write the files of the tokenizer to a directory."""
        for name, content in self.files.items():
            write_bytes(Path(directory, name), content)
