"""Streams of compressed files that notice every kind of damage.

A compressed file may have several streams or frames. At the start of all but the first, Python's own readers take
damage for the end of the file, and zstandard's takes a truncated file for a complete one.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from mae_lm_fairseq.utils.errors import UserError

SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
_READ_BYTES = 1 << 14
_GZIP = 16 + zlib.MAX_WBITS
_LARGEST_WINDOW = 1 << 31
"""The format's limit for ``zstd --long=31``; the library's default is 128 MB."""


def decompressed(raw: BinaryIO, suffix: str) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of a file; it seeks forwards only.

    Args:
        raw: the compressed file.
        suffix: one of :data:`SUFFIXES`.

    Raises:
        UserError: if zstandard is needed and not installed.
        EOFError: on reading, if the file is truncated or damaged.
    """
    if suffix == ".gz":
        streams = _Streams(raw, lambda: zlib.decompressobj(_GZIP), zlib.error, b"\0")
    elif suffix == ".xz":
        streams = _Streams(raw, lzma.LZMADecompressor, lzma.LZMAError, b"\0")
    elif suffix == ".bz2":
        streams = _Streams(raw, bz2.BZ2Decompressor, OSError, b"")
    else:
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{raw.name}: reading it needs zstandard; pip install 'mae_lm_fairseq[corpora]'") from None
        library = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        streams = _Streams(raw, library.decompressobj, zstandard.ZstdError, b"")
    return io.BufferedReader(streams, 1 << 16)


class _Streams(io.RawIOBase):
    """Decompressed bytes of all streams of a file.

    Args:
        raw: the compressed file.
        decompressor: returns a decompressor of one stream.
        error: exception that it raises for damaged data.
        padding: bytes that are ignored between streams.
    """

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any], error: type[Exception], padding: bytes):
        self._raw, self._make, self._error, self._padding = raw, decompressor, error, padding
        self._stream, self._data = None, b""
        self._text, self._position = memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target < self._position:
            raise io.UnsupportedOperation("a compressed stream seeks forwards only")
        while self._position < target and self.read(min(target - self._position, 1 << 20)):
            pass
        return self._position

    def readinto(self, buffer) -> int:
        while not self._text:
            self._data = self._data or self._raw.read(_READ_BYTES)
            if not self._data:
                if self._stream is None or not self._stream.eof:
                    raise EOFError("it ends within a stream")
                return 0
            self._text = memoryview(self._decompress())
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        self._position += count
        return count

    def _decompress(self) -> bytes:
        """Decompress data up to the end of a stream; the result may be empty."""
        data, self._data = self._data, b""
        if self._stream is not None and self._stream.eof:
            data = data.lstrip(self._padding)
        if self._stream is None or (self._stream.eof and data):
            self._stream = self._make()
        if not data:
            return b""
        try:
            text = self._stream.decompress(data)
        except self._error as error:
            raise EOFError(str(error)) from None
        self._data = self._stream.unused_data if self._stream.eof else b""
        return text
