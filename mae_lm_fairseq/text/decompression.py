"""Streams of compressed files that notice every kind of damage, and take little memory whatever a file expands to.

A compressed file may have several streams or frames. At the start of all but the first, Python's own readers take
damage for the end of the file, and zstandard's takes a truncated file for a complete one.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_READ_BYTES = 1 << 14
_PIECE_BYTES = 1 << 20
"""Bytes that are decompressed at a time: 3 kB of bzip2 can be 8 GB of text."""
_ZSTANDARD_READ_BYTES = 1 << 9
"""Bytes of Zstandard that are read at a time, whose library has no such limit; they are at most 16 MB of text."""
_GZIP = 16 + zlib.MAX_WBITS
_LZMA_MEMORY = 1 << 30
"""Memory that an xz file may ask for; those of ``xz -9`` ask for 65 MB."""
_LARGEST_WINDOW = 1 << 31
"""The format's limit for ``zstd --long=31``; the library's default is 128 MB. A window is kept in memory."""
_LARGEST_FRAME, _LARGEST_RATIO = 1 << 30, 256
"""Text of a frame of Zstandard from which on it must not be larger than its file by this factor."""


def decompressed(raw: BinaryIO, suffix: str) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of a file; it does not seek.

    Args:
        suffix: one of :data:`SUFFIXES`.

    Raises:
        ModuleNotFoundError: if zstandard is needed and not installed.
        EOFError: on reading, if the file is truncated or damaged, or is made to fill the memory.
    """
    if suffix == ".gz":
        texts = _texts(raw, lambda: zlib.decompressobj(_GZIP), zlib.error, b"\0")
    elif suffix == ".xz":
        texts = _texts(raw, lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY), lzma.LZMAError, b"\0")
    elif suffix == ".bz2":
        texts = _texts(raw, bz2.BZ2Decompressor, OSError, b"")
    else:
        import zstandard  # in the extra corpora

        library = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        texts = _texts(raw, lambda: _Frame(library), zstandard.ZstdError, b"", _ZSTANDARD_READ_BYTES)
    return io.BufferedReader(_Stream(texts), 1 << 16)


class _Frame:
    """A frame of Zstandard, with the methods of Python's own decompressors."""

    def __init__(self, library: Any):
        self._frame = library.decompressobj()
        self._read, self._written = 0, 0

    def decompress(self, data: bytes, limit: int) -> bytes:
        text = self._frame.decompress(data)
        self._read += len(data)
        self._written += len(text)
        if self._written > max(_LARGEST_FRAME, _LARGEST_RATIO * self._read):  # all of it may be in the window
            raise EOFError(f"it expands more than {_LARGEST_RATIO}-fold")
        return text

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data


def _texts(
    raw: BinaryIO,
    decompressor: Callable[[], Any],
    damage: type[Exception],
    padding: bytes,
    read_bytes: int = _READ_BYTES,
) -> Iterator[memoryview]:
    stream, data = None, b""
    while data := data or raw.read(read_bytes):
        if stream is None or stream.eof:
            data = data.lstrip(padding) if stream else data
            if not data:
                continue
            stream = decompressor()
        try:
            yield from _pieces(stream, data)
        except damage as error:
            raise EOFError(str(error)) from None
        data = stream.unused_data if stream.eof else b""
    if stream is None or not stream.eof:
        raise EOFError("it ends within a stream")


def _pieces(stream: Any, data: bytes) -> Iterator[memoryview]:
    """Yield what some bytes of a stream decompress to; no piece is empty."""
    while True:
        text = stream.decompress(data, _PIECE_BYTES)
        if text:
            yield memoryview(text)
        data = getattr(stream, "unconsumed_tail", b"")  # zlib's; the others keep it
        if stream.eof or (len(text) < _PIECE_BYTES and not data):
            return


class _Stream(io.RawIOBase):
    def __init__(self, texts: Iterator[memoryview]):
        self._texts, self._text = texts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._text = self._text or next(self._texts, self._text)
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count
