"""Memory of compressed files and tables that expand to far more than they hold, and that every byte of them is read."""

import bz2
import gzip
import lzma
import tracemalloc
import zlib

import pytest
import zstandard

from mae_lm_fairseq.text import decompression, records
from mae_lm_fairseq.text.decompression import decompressed
from mae_lm_fairseq.text.records import csv_rows
from mae_lm_fairseq.text.text_files import read_chunks
from tests.support.refusals import refused

PACKERS = {
    ".gz": gzip.compress,
    ".xz": lambda text: lzma.compress(text, preset=0),
    ".bz2": bz2.compress,
    ".zst": lambda text: zstandard.ZstdCompressor(write_content_size=False).compress(text),
}
SIZE = 128 << 20
MEMORY = 48 << 20
"""Above what one piece takes (twice 16 MB of Zstandard), and far below the text."""


@pytest.fixture(scope="module", params=PACKERS)
def bomb(request, tmp_path_factory):
    """Write a small file that expands to a large one."""
    path = tmp_path_factory.mktemp("bomb") / f"text{request.param}"
    path.write_bytes(PACKERS[request.param](b"\n" * SIZE))
    assert path.stat().st_size < SIZE // 500
    return path


def test_a_piece_of_a_file_that_expands_takes_little_memory(bomb):
    with open(bomb, "rb") as raw:
        stream, read = decompressed(raw, bomb.suffix), 0
        tracemalloc.start()
        try:
            while data := stream.read(1 << 22):
                read += len(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert read == SIZE
    assert peak < MEMORY


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_text_is_complete_whatever_the_pieces(tmp_path, suffix, size):
    path, text = tmp_path / f"a{suffix}", b"ab" * (size // 2) + b"\n" * (size % 2)
    path.write_bytes(PACKERS[suffix](text) + PACKERS[suffix](b"two"))
    with open(path, "rb") as raw:
        assert decompressed(raw, suffix).read() == text + b"two"


def test_a_frame_that_would_fill_its_window_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(decompression, "_LARGEST_FRAME", 1 << 22)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(PACKERS[".zst"](b"text\n" * (1 << 21)))
    with refused(r"a\.txt\.zst"):
        list(read_chunks(path))


def test_an_xz_that_asks_for_much_memory_is_refused(tmp_path):
    packed = bytearray(lzma.compress(b"text"))
    header = slice(12, 12 + 4 * (packed[12] + 1))  # of the block, and its checksum
    packed[packed.index(b"\x21\x01") + 2] = 39  # a dictionary of 3 GB
    packed[header.stop - 4 : header.stop] = zlib.crc32(packed[header][:-4]).to_bytes(4, "little")
    (tmp_path / "a.xz").write_bytes(packed)
    with open(tmp_path / "a.xz", "rb") as raw, pytest.raises(EOFError, match=r"(?i)memory"):
        decompressed(raw, ".xz").read()


@pytest.mark.parametrize("row", [b"a," * 60, b'"\n",' * 40], ids=["one line", "quoted line breaks"])
def test_a_row_without_an_end_is_refused(tmp_path, monkeypatch, row):
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    (tmp_path / "a.csv").write_bytes(b"text,id\nb,1\n" + row)
    with open(tmp_path / "a.csv", "rb") as stream, refused(r"a\.csv"):
        list(csv_rows(stream, tmp_path / "a.csv"))


def test_rows_are_counted_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    (tmp_path / "a.csv").write_bytes(b'text,id\n"b\n",1\n' * 30)
    with open(tmp_path / "a.csv", "rb") as stream:
        assert len(list(csv_rows(stream, tmp_path / "a.csv"))) == 60
