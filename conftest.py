"""Tests of a GPU (``-m gpu``) and those of a CPU run apart, so that tests of a CPU mean the same on every machine.

pytest loads this file before tests/conftest.py, and fairseq counts the GPUs when that imports it.
"""

import argparse
import os
import re
import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rehearses the tests of a GPU."""
    about = "device of the tests marked gpu; cpu runs their code where there is no GPU"
    parser.addoption("--gpu-tests-on", choices=("cuda", "cpu"), default="cuda", help=about)


def selects_gpu(selection: str) -> bool:
    """Return whether a run selects the tests marked gpu with ``-m``."""
    return bool(re.search(r"(?<!not )\bgpu\b", selection))


def hide_gpus(words: list[str]) -> None:
    """Hide GPUs from tests of a CPU and all that they start, unless pytest's arguments select those of a GPU."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", dest="selection", default="")
    parser.add_argument("--gpu-tests-on", default="cuda")
    chosen, _ = parser.parse_known_args(words)
    if not selects_gpu(chosen.selection) or chosen.gpu_tests_on == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def wrong_device(item: pytest.Item) -> str | None:
    """Return why this run cannot run a test."""
    import torch

    is_run_of_gpu = selects_gpu(item.config.option.markexpr)
    if not item.get_closest_marker("gpu"):
        return "is a test of a CPU, run without -m gpu" if is_run_of_gpu else None
    if not is_run_of_gpu:
        return "is a test of a GPU, run with -m gpu"
    if item.config.getoption("--gpu-tests-on") == "cuda" and not torch.cuda.is_available():
        return "needs a GPU"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the other device."""
    for item in items:
        if reason := wrong_device(item):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> str:
    """Return the device of the tests marked gpu: ``cuda``, or ``cpu`` in a rehearsal."""
    return pytestconfig.getoption("--gpu-tests-on")


if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the environment
    hide_gpus(sys.argv[1:])
