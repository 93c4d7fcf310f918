"""Tests of a GPU and those of a CPU run apart."""

import os
import shlex
from types import SimpleNamespace

import pytest
import torch

from tests.support import ROOT


@pytest.fixture(scope="module")
def root(pytestconfig):
    """Return the module conftest.py in the root directory."""
    return pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))


def test_no_gpu_is_visible_to_tests_of_a_cpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("selection", "marked", "device", "available", "reason"),
    [
        ("", False, "cuda", True, None),
        ("not slow", True, "cuda", True, "is a test of a GPU, run with -m gpu"),
        ("gpu", True, "cuda", True, None),
        ("gpu and not slow", True, "cuda", False, "needs a GPU"),
        ("gpu or slow", False, "cuda", True, "is a test of a CPU, run without -m gpu"),
    ],
)
def test_what_runs_where(root, monkeypatch, selection, marked, device, available, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    config = SimpleNamespace(option=SimpleNamespace(markexpr=selection), getoption=lambda name: device)
    item = SimpleNamespace(config=config, get_closest_marker=lambda name: marked)
    assert root.wrong_device(item) == reason


@pytest.mark.parametrize(
    ("words", "visible"),
    [
        ("", ""),
        ("-m 'not gpu'", ""),
        ("-m 'gpu and not slow' -x", "0"),
        ("-m gpu --gpu-tests-on cpu", ""),
    ],
)
def test_gpus_are_hidden(root, monkeypatch, words, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    root.hide_gpus(shlex.split(words))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
