"""Option checks, error messages and resource division of the launcher; tests/end_to_end/test_launch_cpu.py runs it."""

import multiprocessing
import os
from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.recipes import launcher
from mae_lm_fairseq.utils.errors import UserError


@pytest.mark.parametrize("processes", [-1, 0, 10**6])
def test_invalid_numbers_of_processes_are_refused(processes):
    with pytest.raises(UserError, match=f"^{processes} processes: choose a number from 1 to"):
        launcher.launch(processes, ["data-bin"])


@pytest.mark.parametrize("argument", ["--distributed-world-size", "--ddp-backend=pytorch_ddp"])
def test_options_set_by_the_launcher_are_refused(argument):
    with pytest.raises(UserError, match=f"remove {argument}"):
        launcher.launch(2, ["data-bin", argument])


@pytest.mark.parametrize(("given", "threads"), [(None, "2"), ("3", "3")])
def test_cpu_threads_are_divided(monkeypatch, given, threads):
    environment = {} if given is None else {"OMP_NUM_THREADS": given}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    launcher._limit_resources(4)
    assert environment["OMP_NUM_THREADS"] == threads
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("codes", "failure", "expected", "details"),
    [
        ([1, -9], ("process 0 failed", "connection closed"), "error: process 1 was killed (SIGKILL)", ""),
        ([None, 1], ("no such file", ""), "error: no such file", ""),
        ([1, None], ("process 0 failed", "Traceback\n"), "error: process 0 failed", "Traceback\n"),
        ([None, 3], None, "error: process 1 ended with exit code 3", ""),
    ],
)
def test_the_first_failure_is_reported(capsys, codes, failure, expected, details):
    failures = multiprocessing.SimpleQueue()
    if failure is not None:
        failures.put(failure)
    with pytest.raises(UserError) as caught:
        launcher._raise_failure([SimpleNamespace(exitcode=code) for code in codes], failures)
    assert str(caught.value).startswith(expected.removeprefix("error: "))
    assert capsys.readouterr().err == details


def test_no_failure_yet():
    launcher._raise_failure([SimpleNamespace(exitcode=code) for code in (None, 0)], multiprocessing.SimpleQueue())
