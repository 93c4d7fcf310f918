"""Atomic writing of files and directories."""

import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mae_lm_fairseq.utils.directories import new_directory
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import (
    directory_while_used,
    file_sha256,
    make_output_directory,
    read_bytes,
    read_json,
    read_record,
    writable_file,
    write_json,
    write_record,
    write_text,
)
from tests.support.disks import room_for
from tests.support.refusals import refused


def test_text_is_written_unchanged(tmp_path):
    write_text(tmp_path / "file", "ä\r\nb\n")
    assert (tmp_path / "file").read_bytes() == "ä\r\nb\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [("nowhere/file", "text", UserError), ("old", "\ud800", UnicodeEncodeError)],
)
def test_text_that_cannot_be_written_changes_nothing(tmp_path, name, text, error):
    (tmp_path / "old").write_text("old")
    with pytest.raises(error):
        write_text(tmp_path / name, text)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_text_for_which_the_disk_is_too_full_changes_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    with refused("/old: File too large"), room_for(1000):
        write_text(tmp_path / "old", "x" * 10_000)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "3", '"rows"', "{}", '{"rows": null}', '{"rows": "x"}', "[" * 10**5]
)
def test_a_json_file_of_another_structure_is_named(tmp_path, text):
    path = tmp_path / "counts.json"
    path.write_text(text)
    fault = "is damaged" if text.endswith(("{", "[")) else "(lacks|has other content)"
    with refused(rf"counts\.json {fault}"):
        read_json(path, lambda content: {name: int(count) for name, count in {**content, "n": content["rows"]}.items()})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, UserError])
def test_failed_new_directories_are_removed(tmp_path, error):
    def make():
        with new_directory(tmp_path / "new/out") as directory:
            (directory / "file").touch()
            raise error("x")

    with pytest.raises(error):
        make()
    assert not list(tmp_path.iterdir())


def save_for_torch(path):
    with open(path, "wb") as file:
        torch.save(torch.zeros(100_000), file)


def save_tokenizer(path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"token{number}": number for number in range(5000)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="token0")).save(str(path))


@pytest.mark.parametrize(
    "save",
    [
        lambda path: path.write_text("x" * 100_000),
        lambda path: save_file({"weight": torch.zeros(100_000)}, path),
        save_for_torch,
        save_tokenizer,
    ],
    ids=["text", "safetensors", "torch", "tokenizers"],
)
def test_a_full_disk_is_named_whichever_library_writes(tmp_path, save):
    def make():
        with new_directory(tmp_path / "out") as directory:
            save(directory / "file")

    with refused("/out: File too large"), room_for(30_000):
        make()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "reason"), [("file/out", "file: File exists"), ("x" * 300, "File name too long")])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, name, reason):
    (tmp_path / "file").touch()
    with refused(f"{name}: .*{reason}"), new_directory(tmp_path / name):
        pass


def test_an_output_directory_that_is_not_writable_is_refused(tmp_path, monkeypatch):
    make_output_directory(tmp_path / "a/b")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with refused("b is not a writable directory"):
        make_output_directory(tmp_path / "a/b")


def test_directories_that_existed_or_are_in_use_stay(tmp_path):
    with directory_while_used(tmp_path / "a/b"):
        assert (tmp_path / "a/b").is_dir()
    (tmp_path / "a").mkdir()
    with directory_while_used(tmp_path / "a"):
        pass
    with directory_while_used(tmp_path / "c/d"):
        (tmp_path / "c/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "c", "file"]


CONTENT = {"numbers": [1, 0.1, float("inf")], "name": "\u00fc\ud800", "nested": {"a": None, "b": (1, 2)}}


@pytest.mark.parametrize("indent", [2, None])
def test_a_record_is_read_without_its_hash(tmp_path, indent):
    write_record(tmp_path / "record.json", CONTENT, indent)
    assert read_record(tmp_path / "record.json") == CONTENT | {"nested": {"a": None, "b": [1, 2]}}
    assert read_record(tmp_path / "record.json", lambda content: content["numbers"][0]) == 1


@pytest.mark.parametrize(("old", "new"), [("0.1", "0.2"), ('"a"', '"b"'), ("[", "[3,"), ('"name"', '"nams"')])
def test_a_record_with_other_content_is_damaged(tmp_path, old, new):
    write_record(tmp_path / "record.json", CONTENT)
    text = (tmp_path / "record.json").read_text()
    (tmp_path / "record.json").write_text(text.replace(old, new, 1))
    with refused(r"record\.json is damaged; restore it"):
        read_record(tmp_path / "record.json", remedy="restore it")


def test_a_record_of_an_earlier_version_has_no_hash(tmp_path):
    write_json(tmp_path / "record.json", {"a": 1})
    assert read_record(tmp_path / "record.json") == {"a": 1}


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", "pipe"])
def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path, monkeypatch, name):
    """With root's rights, --out /dev/null would replace the device for all programs of the machine."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    if Path(name).is_file():
        pytest.skip("is redirected to a file")
    with pytest.raises(ArgumentTypeError, match=name):
        writable_file(name)


@pytest.mark.parametrize("read", [read_bytes, read_json])
@pytest.mark.parametrize("kind", ["sparse", "endless"])
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, read, kind):
    path = tmp_path / "config.json"
    if kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    else:
        path.symlink_to("/dev/zero")
    with refused(r"config\.json"):
        read(path)


def test_a_device_has_no_hash(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    with refused("zero"):
        file_sha256(tmp_path / "zero")
