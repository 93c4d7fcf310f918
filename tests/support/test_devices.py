"""Tests of a GPU and those of a CPU run apart."""

import os
from types import SimpleNamespace

import pytest
import torch

from tests import conftest


def run_of(selection: str, device: str = "cuda") -> SimpleNamespace:
    """Return a run of ``pytest -m SELECTION --gpu-tests-on DEVICE``."""
    return SimpleNamespace(option=SimpleNamespace(markexpr=selection), getoption=lambda name: device)


def test_no_gpu_is_visible_to_tests_of_a_cpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    ("selection", "marked", "device", "available", "reason"),
    [
        ("", False, "cuda", True, None),
        ("not slow", True, "cuda", True, "is a test of a GPU, run with -m gpu"),
        ("not gpu", False, "cuda", True, None),
        ("gpu", True, "cuda", True, None),
        ("gpu and not slow", True, "cuda", False, "needs a GPU"),
        ("gpu", True, "cpu", False, None),
        ("gpu or slow", False, "cuda", True, "is a test of a CPU, run without -m gpu"),
    ],
)
def test_what_runs_where(monkeypatch, selection, marked, device, available, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    item = SimpleNamespace(config=run_of(selection, device), get_closest_marker=lambda name: marked)
    assert conftest.wrong_device(item) == reason


@pytest.mark.parametrize(
    ("selection", "device", "visible"),
    [("", "cuda", ""), ("not slow", "cuda", ""), ("not gpu", "cuda", ""), ("gpu", "cuda", "0"), ("gpu", "cpu", "")],
)
def test_gpus_are_hidden(monkeypatch, selection, device, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    conftest.pytest_configure(run_of(selection, device))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
