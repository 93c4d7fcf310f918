"""Zstandard streams that notice a truncated file."""

import io
from typing import BinaryIO

from mae_lm_fairseq.utils.errors import UserError

_READ_BYTES = 1 << 14
_LARGEST_WINDOW = 1 << 31
"""The format's limit for ``zstd --long=31``; the library's default is 128 MB."""


def open_zstd(raw: BinaryIO) -> io.BufferedReader:
    """Return a stream of the decompressed bytes of a .zst file, which may have several frames.

    zstandard's own reader takes a truncated file for a complete one.

    Raises:
        UserError: if zstandard is not installed.
        EOFError: on reading, if the file is truncated or damaged.
    """
    try:
        import zstandard
    except ImportError:
        name = getattr(raw, "name", "a .zst file")
        raise UserError(f"{name}: reading it needs zstandard; pip install 'mae_lm_fairseq[corpora]'") from None
    return io.BufferedReader(_Frames(raw, zstandard), 1 << 16)


class _Frames(io.RawIOBase):
    """Decompressed bytes of all frames; seeks forwards only."""

    def __init__(self, raw: BinaryIO, zstandard):
        self._raw, self._zstandard = raw, zstandard
        self._frame = None
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
            raise io.UnsupportedOperation("a .zst stream seeks forwards only")
        while self._position < target and self.read(min(target - self._position, 1 << 20)):
            pass
        return self._position

    def readinto(self, buffer) -> int:
        while not self._text:
            data = self._frame.unused_data if self._frame and self._frame.eof else b""
            data = data or self._raw.read(_READ_BYTES)
            if not data:
                if self._frame and not self._frame.eof:
                    raise EOFError("it ends within a frame")
                return 0
            self._text = memoryview(self._decompress(data))
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        self._position += count
        return count

    def _decompress(self, data: bytes) -> bytes:
        if self._frame is None or self._frame.eof:
            self._frame = self._zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        try:
            return self._frame.decompress(data)
        except self._zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
