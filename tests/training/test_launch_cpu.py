"""Option checks, error messages and resource division of the launcher; tests/end_to_end/test_launch_cpu.py runs it."""

import os

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from mae_lm_fairseq.training import launch_cpu
from mae_lm_fairseq.utils.errors import UserError


@pytest.mark.parametrize("processes", [-1, 0, 10**6])
def test_invalid_numbers_of_processes_are_refused(processes):
    with pytest.raises(UserError, match=f"^{processes} processes: choose a number from 1 to"):
        launch_cpu.launch(processes, ["data-bin"])


@pytest.mark.parametrize(("given", "threads"), [(None, "2"), ("3", "3")])
def test_cpu_threads_are_divided(monkeypatch, given, threads):
    environment = {} if given is None else {"OMP_NUM_THREADS": given}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    launch_cpu._limit_resources(4)
    assert environment["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([(1, 7), (-9, 7)], "process 1 was killed (SIGKILL), and the others were stopped"),
        ([(-15, 7), (1, 7)], "process 1 ended with exit code 1, and the others were stopped"),
        ([(-9, 12), (3, 7)], "process 1 ended with exit code 3, and the others were stopped"),
    ],
)
def test_the_first_failure_is_reported(codes, expected):
    """The others lose the connection to it, are stopped, or are killed if they do not stop."""
    failures = {}
    for rank, (code, second) in enumerate(codes):
        failures[rank] = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="none")
        failures[rank].timestamp = second
    assert launch_cpu._described(failures).startswith(expected)
