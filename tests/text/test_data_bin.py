import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import (
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    _code_to_dtype as fairseq_types,
    make_builder,
)
from hypothesis import given, strategies as st

from mae_lm_fairseq.text import data_bin as module
from mae_lm_fairseq.text.data_bin import (
    DataBinWriter,
    check_data_bin,
    check_dictionary,
    dictionary_fingerprint,
)
from mae_lm_fairseq.text.manifest import Manifest, SplitStatistics
from mae_lm_fairseq.utils.versions import OF_DATA, versions
from tests.support.refusals import refused

LINES = [[4, 5, 6, 2], [2], [7, 2]]
MANIFEST = Manifest(
    versions=versions(OF_DATA),
    options={"train": ["a.txt"], "vocab_size": None},
    tokenizer_sha256="0" * 64,
    dictionary_sha256=dictionary_fingerprint(["<s>", "<pad>", "</s>", "<unk>", "▁a"]),
    splits={"train": SplitStatistics(1, 2, 30, 30, 1, 0.1)},
)


def write(prefix, lines=LINES, vocabulary=100, lines_per_write=2):
    with DataBinWriter(prefix, vocabulary) as writer:
        for start in range(0, len(lines), lines_per_write):
            part = lines[start : start + lines_per_write]
            writer.write(np.concatenate(part), np.array([len(line) for line in part]))


def write_as_fairseq(prefix, lines=LINES, vocabulary=100, implementation="mmap"):
    builder = make_builder(f"{prefix}.bin", implementation, vocabulary)
    for line in lines:
        builder.add_item(torch.IntTensor(line))
    builder.finalize(f"{prefix}.idx")


def content(prefix):
    return [prefix.with_suffix(suffix).read_bytes() for suffix in (".bin", ".idx")]


@pytest.mark.parametrize("vocabulary", [5, 65499, 65500, 200_000])
@given(
    lines=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=20),
    lines_per_write=st.integers(1, 20),
)
def test_files_equal_those_of_fairseq(tmp_path_factory, vocabulary, lines, lines_per_write):
    directory = tmp_path_factory.mktemp("bin")
    write(directory / "ours", lines, vocabulary, lines_per_write)
    write_as_fairseq(directory / "theirs", lines, vocabulary)
    assert content(directory / "ours") == content(directory / "theirs")
    assert check_data_bin(directory / "ours") == (len(lines), sum(map(len, lines)))
    dataset = MMapIndexedDataset(str(directory / "ours"))
    assert [dataset[i].tolist() for i in range(len(lines))] == lines


@pytest.mark.parametrize("token_type", [kind for kind in fairseq_types.values() if np.issubdtype(kind, np.integer)])
def test_all_integer_types_of_fairseq_are_read(tmp_path, token_type):
    builder = MMapIndexedDatasetBuilder(f"{tmp_path / 'lines'}.bin", dtype=token_type)
    for line in LINES:
        builder.add_item(torch.IntTensor(line))
    builder.finalize(f"{tmp_path / 'lines'}.idx")
    assert check_data_bin(tmp_path / "lines") == (len(LINES), sum(map(len, LINES)))


def test_the_index_is_written_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    lines = [[i + 4] * (i % 5 + 1) for i in range(25)]
    write(tmp_path / "ours", lines)
    write_as_fairseq(tmp_path / "theirs", lines)
    assert content(tmp_path / "ours") == content(tmp_path / "theirs")


def test_lines_are_read_in_bounded_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TOKENS", 7)
    monkeypatch.setattr(module, "_LINES", 4)
    lines = [[i + 4] * size for i, size in enumerate([3, 4, 1, 20, 2, 2, 2, 1, 1, 9])]
    write(tmp_path / "data", lines)
    blocks = list(module.read_lines(tmp_path / "data"))
    assert [sizes.tolist() for _, sizes in blocks] == [[3, 4], [1], [20], [2, 2, 2, 1], [1], [9]]
    assert np.concatenate([tokens for tokens, _ in blocks]).tolist() == np.concatenate(lines).tolist()


def test_an_exception_leaves_nothing(tmp_path):
    write(tmp_path / "train")

    def interrupted():
        with DataBinWriter(tmp_path / "train", 100) as writer:
            writer.write(np.array([4, 2]), np.array([2]))
            assert not (tmp_path / "train.idx").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        (".bin", lambda data: None, "train.bin: no such file"),
        (".bin", lambda data: data[:-1], "train.bin: damaged, 13 bytes instead of 14"),
        (".idx", lambda data: b"x" + data[1:], "train.idx: damaged"),
        (".idx", lambda data: data[:9] + b"\x02" + data[10:], "train.idx: damaged"),
        (".idx", lambda data: data[:17] + b"\x63" + data[18:], "train.idx: damaged"),
        (".idx", lambda data: data[:18] + bytes(8), "train.idx: the data-bin has no lines"),
        (".idx", lambda data: data[:26] + b"\x05" + data[27:], "train.idx: sizes and offsets of the lines contradict"),
    ],
)
def test_damage_is_found_and_named(tmp_path, suffix, damage, message):
    write(tmp_path / "train")
    assert check_data_bin(tmp_path / "train") == (3, 7)
    path = tmp_path / f"train{suffix}"
    damaged = damage(path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with refused(message) as caught:
        check_data_bin(str(tmp_path / "train"))
    assert "prepare the data again" in str(caught.value)


def test_another_dictionary_is_refused(tmp_path):
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "▁a"]
    check_dictionary(tmp_path, ["whatever"])
    MANIFEST.write(tmp_path / "manifest.json")
    check_dictionary(tmp_path, symbols)
    with refused(r"dict\.txt"):
        check_dictionary(str(tmp_path), [*symbols, "▁b"])


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    MANIFEST.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == MANIFEST


def test_tokens_beyond_the_dictionary_are_refused(tmp_path):
    write(tmp_path / "train")
    highest = max(token for line in LINES for token in line)
    check_data_bin(tmp_path / "train", highest + 1)
    with refused(rf"token {highest}.*dict\.txt"):
        check_data_bin(tmp_path / "train", highest)
