import gzip
import lzma
import os
import random

import pytest
from hypothesis import assume, given, strategies as st

from mae_lm_fairseq.text.text_files import find_files, read_chunks, sample_lines, split_lines
from tests.support.refusals import refused

PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def numbered(count):
    return "".join(f"line {i} {'x' * (i % 7)}\n" for i in range(count)).encode()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"\n\n", ["", ""]),
        ("a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h\n".encode(), ["a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"]),
    ],
)
def test_lines_end_with_newlines_only(data, lines):
    assert split_lines(data) == lines


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r")))
def test_splitting_loses_nothing(text):
    ended = text if text.endswith("\n") or not text else text + "\n"
    assert "".join(line + "\n" for line in split_lines(text.encode())) == ended


def test_directories_are_searched_in_order_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b/c.gz", ".git/config", "a/.DS_Store"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/linked.txt").write_text("x")
    (tmp_path / "a/link").symlink_to(tmp_path / "other")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    paths = find_files([tmp_path / "b.txt", tmp_path / "a"])
    names = [str(path.relative_to(tmp_path)) for path in paths]
    assert names[0] == "b.txt"
    assert names[1:4] == ["a/b/c.gz", "a/link/linked.txt", "a/loop/b.txt"]
    assert names.count("a/z.txt") == 1
    assert not any("/." in name or name.startswith(".") for name in names)


@pytest.mark.parametrize("pattern", ["", "**", "**/*", "*"])
def test_a_glob_gives_each_file_once(tmp_path, pattern):
    """A pattern also matches directories, which stand for all files below them."""
    for name in ("a/b/c.txt", "a/d.txt", "a-b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a/empty").mkdir()
    paths = find_files([tmp_path / pattern])
    assert sorted(str(path.relative_to(tmp_path)) for path in paths) == ["a-b.txt", "a/b/c.txt", "a/d.txt"]
    assert find_files([tmp_path / "**", tmp_path / "a/d.txt"]).count(tmp_path / "a/d.txt") == 2


def test_missing_and_special_files_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/link").symlink_to(tmp_path / "nowhere")
    for name, message in [
        ("missing", "missing: no such file, or not a regular one"),
        ("empty", "empty: the directory has no files"),
        ("pipe", "pipe: no such file, or not a regular one"),
        ("broken", "broken/link: no such file, or not a regular one"),
    ]:
        with refused(message):
            find_files([tmp_path / name])


@pytest.mark.parametrize("suffix", PACKERS)
@given(lines=st.lists(st.text("ab\r é", max_size=5), max_size=30), size=st.integers(1, 40), ended=st.booleans())
def test_chunks_are_complete_lines_that_concatenate_to_the_file(tmp_path_factory, suffix, lines, size, ended):
    path = tmp_path_factory.mktemp("chunks") / f"text{suffix}"
    data = "\n".join(lines).encode() + b"\n" * ended
    assume(b"\n" in data or b"\r" not in data[:-1])  # a file with CR alone is refused
    path.write_bytes(PACKERS[suffix](data))
    chunks = list(read_chunks(path, size))
    assert b"".join(chunk.data for chunk in chunks) == data
    assert all(chunk.data.endswith(b"\n") for chunk in chunks[:-1])
    starts = [1 + sum(len(split_lines(chunk.data)) for chunk in chunks[:i]) for i in range(len(chunks))]
    assert [chunk.first_line for chunk in chunks] == starts


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert [chunk.data.decode() for chunk in read_chunks(tmp_path / "text", 1)] == ["a\n", "\ufeffb\n"]
    assert list(sample_lines([tmp_path / "text"], 100)) == ["a", "\ufeffb"]


@given(counts=st.lists(st.integers(0, 300), min_size=1, max_size=4), block=st.integers(20, 400))
def test_the_sample_is_bounded_and_repeats_nothing(tmp_path_factory, counts, block):
    directory = tmp_path_factory.mktemp("sample")
    paths = [directory / str(i) for i in range(len(counts))]
    for path, count in zip(paths, counts, strict=True):
        path.write_bytes(numbered(count))
    lines = [list(sample_lines([path], 10**9)) for path in paths]
    sample = list(sample_lines(paths, 1000, block))
    # Each block may end with a line that extends beyond the block.
    assert sum(len(line) + 1 for line in sample) <= max(1000, block) + (1000 // block + 1) * 20
    remaining = iter(line for file in lines for line in file)
    assert all(line in remaining for line in sample)  # in order, each line of the corpus at most once


@pytest.mark.parametrize("files", [1, 1000])
def test_a_small_sample_is_spread_over_one_large_file_or_many_small_ones(tmp_path, files):
    lines = [f"line {i} {'x' * (i % 90)}\n" for i in range(20_000)]
    paths = [tmp_path / f"{number:04}" for number in range(files)]
    for number, path in enumerate(paths):
        path.write_text("".join(lines[20_000 * number // files : 20_000 * (number + 1) // files]))
    sample = list(sample_lines(paths, 200_000))
    assert 180_000 < sum(len(line) + 1 for line in sample) < 210_000
    assert {int(line.split()[1]) // 1000 for line in sample} == set(range(20))
    assert sample == list(sample_lines(paths, 200_000))


@pytest.mark.parametrize("suffix", PACKERS)
def test_the_sample_is_spread_over_all_of_the_text(tmp_path, suffix):
    generator = random.Random(0)
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        lines = [f"line {i} {generator.randbytes(10).hex()}\n" for i in range(3000)]
        path.write_bytes(PACKERS[suffix]("".join(lines).encode()))
    positions = [int(line.split()[1]) for line in sample_lines(paths, 30_000, block=300)]
    second = next(i for i in range(1, len(positions)) if positions[i] < positions[i - 1])
    for part in (positions[:second], positions[second:]):
        assert {position // 300 for position in part} == set(range(10))
        assert len(part) < 600


def test_compressed_text_may_be_larger_than_estimated(tmp_path):
    """A hundredth of the text, compressed: it is read up to the limit."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"always the same\n" * 10_000))
    assert len(list(sample_lines([tmp_path / "a.gz"], 10_000_000))) == 10_000


def test_an_empty_name_is_no_directory():
    """As of an unset variable of a shell, in quotes."""
    with refused("is empty"):
        find_files([""])
