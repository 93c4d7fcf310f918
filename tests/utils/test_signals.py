"""Signals that end a program."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mae_lm_fairseq.utils import signals
from mae_lm_fairseq.utils.errors import Interrupted
from mae_lm_fairseq.utils.signals import (
    ENDING,
    requests_to_end,
    signals_as_errors,
    signals_blocked,
    signals_end_the_program,
    uninterrupted,
)
from tests.support.processes import fork, wait_for


@pytest.fixture(autouse=True)
def default_handlers():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_is_an_error_and_the_next_ones_are_ignored(number):
    def end():
        try:
            signal.raise_signal(number)
        finally:
            for later in ENDING:
                signal.raise_signal(later)

    with pytest.raises(Interrupted, match=f"interrupted by {number.name}"), signals_as_errors():
        end()
    assert {signal.getsignal(later) for later in ENDING} == {signal.SIG_DFL}


def test_a_package_may_raise_another_error_in_place_of_that_of_a_signal():
    """NumPy's lazy imports end in a RecursionError."""

    def load() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError from None

    with pytest.raises(Interrupted, match="interrupted by SIGTERM"), signals_as_errors():
        load()


def test_a_later_signal_ends_a_program_that_has_not_noticed_the_first():
    def work() -> None:
        signals.REPEATED_WITHIN = 0.0
        with signals_as_errors():
            for number in (signal.SIGTERM, signal.SIGHUP):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(number)

    process = fork(work)
    process.join()
    assert process.exitcode == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", ENDING)
def test_signals_while_a_program_ends_do_not_change_its_exit_code(number):
    def work() -> None:
        try:
            with signals_end_the_program():
                signal.raise_signal(number)
        finally:
            for later in ENDING:
                signal.raise_signal(later)

    process = fork(work)
    process.join()
    assert process.exitcode == 128 + number


def test_a_signal_that_the_parent_has_blocked():
    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        with signals_as_errors():
            signal.raise_signal(signal.SIGTERM)

    process = fork(work)
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM


def test_uninterrupted():
    with uninterrupted():
        for number in ENDING:
            signal.raise_signal(number)


def test_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_as_errors():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_request_that_was_blocked_is_received():
    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        signal.raise_signal(signal.SIGTERM)
        calls = []
        with requests_to_end(calls.append, calls.append):
            wait_for(lambda: calls, 5)

    process = fork(work)
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(("within", "expected"), [(0.0, ["first 15", "second 10"]), (1e9, ["first 15"])])
def test_a_request_that_comes_several_times_is_one(monkeypatch, within, expected):
    monkeypatch.setattr(signals, "REPEATED_WITHIN", within)
    calls = []

    def first(number: int) -> None:
        calls.append(f"first {number:d}")

    def second(number: int) -> None:
        calls.append(f"second {number:d}")

    with requests_to_end(first, second):
        signal.raise_signal(signal.SIGTERM)
        wait_for(lambda: calls)
        signal.raise_signal(signal.SIGUSR1)
    assert calls == expected
    assert {signal.getsignal(number) for number in ENDING} == {signal.SIG_DFL}


def test_a_forked_process_does_not_pass_its_signals_to_its_parent():
    """The child would end the parent with it: torch ends data workers with SIGTERM."""
    calls = []
    with requests_to_end(calls.append, calls.append):
        with signals_blocked():  # until the child has its own handlers
            child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert calls == []


ORPHANED = """
import multiprocessing, os, signal, time
from mae_lm_fairseq.utils import signals

def work():
    signals.heed_parent_only()
    print(os.getpid(), flush=True)
    time.sleep(600)

signals.SECONDS_WITHOUT_PARENT = 0.2
with signals.signals_blocked():
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
worker.join()
"""


@pytest.mark.integration
def test_a_data_worker_ends_after_its_parent_was_killed():
    """torch's watchdog notes the parent too late if that is killed while the worker starts."""
    process = subprocess.Popen([sys.executable, "-c", ORPHANED], stdout=subprocess.PIPE, text=True)
    worker = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 20)
