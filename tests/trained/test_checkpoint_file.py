"""Errors say why a file cannot be read: damage, the memory, the system, or Git LFS."""

import errno
import os
from functools import partial

import pytest
import torch

from mae_lm_fairseq.trained import checkpoint_file
from mae_lm_fairseq.trained.checkpoint_file import (
    content_errors,
    load_as_data,
    load_safetensors,
    opened_safetensors,
)
from mae_lm_fairseq.trained.huggingface.weight_files import read_weights
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import read_json
from tests.support.refusals import refused

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
TORCH_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")


def read_beside(path):
    return read_weights(path.parent)


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("checkpoint.pt", load_as_data),
        ("config.json", read_json),
        ("model.safetensors", partial(load_safetensors, remedy="restore it")),
        ("model.safetensors", read_beside),
        ("pytorch_model.bin", read_beside),
    ],
)
def test_a_pointer_of_git_lfs_is_not_called_damaged(name, load, tmp_path):
    (tmp_path / name).write_bytes(POINTER)
    with refused("Git LFS"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MemoryError(), "memory"),
        (TORCH_MEMORY, "memory"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "Permission denied"),
    ],
)
@pytest.mark.parametrize(("name", "load"), [("checkpoint.pt", load_as_data), ("pytorch_model.bin", read_beside)])
def test_a_file_that_the_system_does_not_give_is_not_called_damaged(name, load, error, named, tmp_path, monkeypatch):
    torch.save({"weight": torch.zeros(2)}, tmp_path / name)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with refused(named) as raised:
        load(tmp_path / name)
    assert "damaged" not in str(raised.value)


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with refused("No such file") as raised:
        load_safetensors(tmp_path / "model.safetensors", "restore it")
    assert "damaged" not in str(raised.value)


def test_a_file_of_weights_that_is_cut_is_called_damaged(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with (
        refused(r"model\.safetensors .*damaged"),
        opened_safetensors(tmp_path / "model.safetensors", "restore it"),
    ):
        pass


@pytest.mark.parametrize("error", [KeyError("layers"), TypeError("of int"), AttributeError("no items")])
def test_content_that_is_not_expected_is_no_damage(error):
    with refused("other content") as raised, content_errors("file"):
        raise error
    assert "damaged" not in str(raised.value)


@pytest.mark.parametrize("error", [MemoryError(), TORCH_MEMORY])
def test_missing_memory_ends_in_one_message(error):
    assert checkpoint_file.is_out_of_memory(error)
    with pytest.raises(SystemExit, match="memory"), errors_end_the_program(), content_errors("file"):
        raise error
