"""fairseq's memory-mapped data-bin: streaming writer and validation.

``PREFIX.bin`` holds the tokens of all lines, concatenated. ``PREFIX.idx`` holds a header, the size of each line as
int32 and the byte offset of each line in the ``.bin`` as int64, little-endian.
"""

import hashlib
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.writing import create_file, remove, replacing_file

DICTIONARY, TOKENIZER = "dict.txt", "sentencepiece.bpe.model"
"""Files of a data-bin. Only ``mae-lm prepare`` adds the tokenizer."""

TASK = "task.json"
"""Description of the task, in a data-bin for fine-tuning on sentences: head, columns and names of the labels."""

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sQBQ")  # magic, version, code of the token type, number of lines
_VERSION = 1
_TOKEN_TYPES = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16, 9: np.uint32, 10: np.uint64,
}  # fmt: skip
_BLOCK = 1 << 20
_LINES, _TOKENS = 1 << 14, 1 << 22
_REMEDY = "prepare the data again"


def dictionary_fingerprint(symbols: Iterable[str]) -> str:
    """Return the hexadecimal SHA-256 of the symbols in order (``<s> <pad> </s> <unk>`` included, without counts).

    ``<mask>`` is ignored, because ``dict.txt`` does not list it: the task adds it.
    """
    digest = hashlib.sha256()
    for symbol in symbols:
        if symbol != "<mask>":
            digest.update(f"{symbol}\n".encode())
    return digest.hexdigest()


class DataBinWriter:
    """Context manager that writes a data-bin line by line, with constant memory.

    The ``.idx`` is renamed to its final name when the block ends without an exception, so a data-bin with an ``.idx``
    is complete. An exception in the block leaves neither file; an exception while the index is written leaves no
    ``.idx``.

    Args:
        prefix: path of both files without ``.bin`` and ``.idx``. Existing files are replaced.
        vocabulary_size: number of symbols in fairseq's dictionary, without ``<mask>``.
    """

    def __init__(self, prefix: str | Path, vocabulary_size: int):
        self._bin_path = Path(f"{prefix}.bin")
        self._idx_path = Path(f"{prefix}.idx")
        self._type = np.dtype(np.uint16 if vocabulary_size < 65500 else np.uint32)  # as of fairseq-preprocess

    def __enter__(self):
        remove(self._idx_path)
        self._bin = create_file(self._bin_path)
        self._sizes = tempfile.TemporaryFile(dir=self._bin_path.parent)
        return self

    def write(self, tokens: np.ndarray, sizes: np.ndarray):
        """Append lines.

        Args:
            tokens: int[sum of sizes], ids of the lines, concatenated.
            sizes: int[lines].
        """
        self._bin.write(tokens.astype(self._type).tobytes())
        self._sizes.write(sizes.astype("<i4").tobytes())

    def __exit__(self, kind, *_):
        with self._bin, self._sizes:
            if kind is None:
                self._bin.flush()
                self._write_index()
        if kind is not None:
            remove(self._bin_path)

    def _write_index(self):
        code = next(code for code, kind in _TOKEN_TYPES.items() if self._type == kind)
        lines = self._sizes.tell() // 4
        with replacing_file(self._idx_path) as index:
            index.write(_HEADER.pack(_MAGIC, _VERSION, code, lines))
            self._sizes.seek(0)
            shutil.copyfileobj(self._sizes, index)
            self._sizes.seek(0)
            begin = 0
            while data := self._sizes.read(_BLOCK):
                tokens = np.cumsum(np.frombuffer(data, "<i4"), dtype="<i8")
                ends = begin + tokens * self._type.itemsize
                begins = np.concatenate(([begin], ends[:-1]))
                index.write(begins.astype("<i8").tobytes())
                begin = int(ends[-1])


def check_data_bin(prefix: str | Path, symbols: int | None = None) -> tuple[int, int]:
    """Check that ``PREFIX.bin`` and ``PREFIX.idx`` are complete, which reads the index.

    Args:
        symbols: number of symbols in the dictionary, without ``<mask>``, if the first 2**28 tokens are to be compared
            with it; for data-bins whose manifest does not identify the dictionary.

    Returns:
        Number of lines and of tokens.

    Raises:
        UserError: if a file is missing, truncated or of another kind, or a token is not in the dictionary; the message
            names the file and what to do.
    """
    lines, kind = _read_header(prefix)
    path = f"{prefix}.idx"
    _check_length(path, _HEADER.size + lines * (4 + 8))
    sizes = np.fromfile(path, "<i4", lines, offset=_HEADER.size)
    offsets = np.fromfile(path, "<i8", lines, offset=_HEADER.size + 4 * lines)
    ends = np.cumsum(sizes, dtype=np.int64) * kind.itemsize
    begins = np.concatenate(([0], ends[:-1]))
    if sizes.min() < 0 or not np.array_equal(offsets, begins):
        raise UserError(f"{path}: sizes and offsets of the lines contradict each other; {_REMEDY}")
    length = int(ends[-1])
    _check_length(f"{prefix}.bin", length)
    tokens = length // kind.itemsize
    if symbols is not None and tokens:
        ids = np.memmap(f"{prefix}.bin", dtype=kind, mode="r")
        highest = int(ids[: 1 << 28].max())
        if highest >= symbols:
            raise UserError(
                f"{prefix}.bin has the token {highest}, but the last one of dict.txt is {symbols - 1}; "
                f"restore the dictionary that it was prepared with, or {_REMEDY}"
            )
    return lines, tokens


def count_tokens(prefix: str | Path) -> int:
    """Return the number of tokens, from the header of the index and the length of ``PREFIX.bin`` alone.

    Raises:
        UserError: if a file is missing or of another kind. :func:`check_data_bin` also notices damage.
    """
    _, kind = _read_header(prefix)
    return os.path.getsize(f"{prefix}.bin") // kind.itemsize


def read_lines(prefix: str | Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the lines of a data-bin that :class:`DataBinWriter` wrote, in blocks: their tokens and sizes.

    A block has a bounded number of lines and tokens; only a single line can have more tokens.
    """
    with open(f"{prefix}.idx", "rb") as index, open(f"{prefix}.bin", "rb") as tokens:
        *_, code, lines = _HEADER.unpack(index.read(_HEADER.size))
        for start in range(0, lines, _LINES):
            sizes = np.fromfile(index, "<i4", min(_LINES, lines - start))
            for block_sizes in _blocks(sizes):
                count = int(block_sizes.sum())
                yield np.fromfile(tokens, _TOKEN_TYPES[code], count), block_sizes


def _blocks(sizes: np.ndarray) -> Iterator[np.ndarray]:
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(sizes):
        limit = ends[first] - sizes[first] + _TOKENS
        fitting = int(np.searchsorted(ends, limit, side="right"))
        last = max(first + 1, fitting)
        yield sizes[first:last]
        first = last


def check_dictionary(directory: str | Path, symbols: Iterable[str]):
    """Check that a dictionary is the one that the data-bin in ``directory`` was prepared with.

    Args:
        directory: directory of the data-bin; without a ``manifest.json``, nothing is checked.
        symbols: symbols of the dictionary, as for :func:`dictionary_fingerprint`.

    Raises:
        UserError: if the manifest names another dictionary or cannot be read.
    """
    path = Path(directory, MANIFEST)
    if not path.exists():
        return
    if Manifest.read(path).dictionary_sha256 != dictionary_fingerprint(symbols):
        raise UserError(
            f"{directory}: dict.txt is not the one that the data-bin was prepared with (see {MANIFEST}); "
            f"restore that one, or {_REMEDY}"
        )


def entropy_of_counts(counts: Collection[int]) -> float:
    """Return the entropy in nats of the frequencies that counts have; a count of 0 adds nothing."""
    total = sum(counts)
    frequencies = [count / total for count in counts if count]
    return -sum(frequency * math.log(frequency) for frequency in frequencies)


def _read_header(prefix: str | Path) -> tuple[int, np.dtype]:
    path = f"{prefix}.idx"
    for file in (path, f"{prefix}.bin"):
        if not os.path.isfile(file):
            raise UserError(f"{file}: no such file; check the path to the data-bin, or {_REMEDY}")
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
    magic, version, code, lines = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    is_index = (magic, version) == (_MAGIC, _VERSION) and len(header) == _HEADER.size
    if not is_index or code not in _TOKEN_TYPES:
        raise UserError(f"{path}: damaged, or not an index of fairseq's --dataset-impl mmap; {_REMEDY}")
    if lines == 0:
        raise UserError(f"{path}: the data-bin has no lines; {_REMEDY} from text that is not empty")
    return lines, np.dtype(_TOKEN_TYPES[code])


def _check_length(path: str, expected: int):
    if (length := os.path.getsize(path)) != expected:
        raise UserError(f"{path}: damaged, {length} bytes instead of {expected}; {_REMEDY}")
