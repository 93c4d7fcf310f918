"""Streams of compressed files that notice every kind of damage.

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
_GZIP = 16 + zlib.MAX_WBITS
_LARGEST_WINDOW = 1 << 31
"""The format's limit for ``zstd --long=31``; the library's default is 128 MB."""


def decompressed(raw: BinaryIO, suffix: str) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of a file; it does not seek.

    Args:
        suffix: one of :data:`SUFFIXES`.

    Raises:
        ModuleNotFoundError: if zstandard is needed and not installed.
        EOFError: on reading, if the file is truncated or damaged.
    """
    if suffix == ".gz":
        texts = _texts(raw, lambda: zlib.decompressobj(_GZIP), zlib.error, b"\0")
    elif suffix == ".xz":
        texts = _texts(raw, lzma.LZMADecompressor, lzma.LZMAError, b"\0")
    elif suffix == ".bz2":
        texts = _texts(raw, bz2.BZ2Decompressor, OSError, b"")
    else:
        import zstandard  # in the extra corpora

        library = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        texts = _texts(raw, library.decompressobj, zstandard.ZstdError, b"")
    return io.BufferedReader(_Stream(texts), 1 << 16)


def _texts(
    raw: BinaryIO, decompressor: Callable[[], Any], damage: type[Exception], padding: bytes
) -> Iterator[memoryview]:
    stream, data = None, b""
    while data := data or raw.read(_READ_BYTES):
        if stream is None or stream.eof:
            data = data.lstrip(padding) if stream else data
            if not data:
                continue
            stream = decompressor()
        try:
            text = stream.decompress(data)
        except damage as error:
            raise EOFError(str(error)) from None
        if text:
            yield memoryview(text)
        data = stream.unused_data if stream.eof else b""
    if stream is None or not stream.eof:
        raise EOFError("it ends within a stream")


class _Stream(io.RawIOBase):
    def __init__(self, texts: Iterator[memoryview]):
        self._texts, self._text = texts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self._text = self._text or next(self._texts, self._text)
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count
