"""Timeout for tests: print all stacks, end what the test has started, and fail that test alone.

pytest-timeout by itself ends the whole run, and leaves processes behind that a test has started in sessions of their
own.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

GRACE_SECONDS = 60
"""Time that a test has to end after its limit, cleaning up included. Then its process is ended: pytest-xdist reports
the test as failed, and starts another process."""
_stderr = sys.__stderr__


def pytest_configure() -> None:
    """Keep the stderr of the run, which pytest captures during a test, and install the handler that ends a test."""
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")
    signal.signal(signal.SIGUSR2, fail)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings) -> bool:
    """Start the timers of a test.

    pytest-timeout calls this hook before each test, and ``item.cancel_timeout`` after it.
    """
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    timers = [
        threading.Timer(settings.timeout, end_test, (item.nodeid, settings.timeout, before)),
        threading.Timer(settings.timeout + GRACE_SECONDS, os._exit, (1,)),
    ]
    item.cancel_timeout = lambda: [timer.cancel() for timer in timers]
    for timer in timers:
        timer.daemon = True
        timer.start()
    return True


def end_test(test: str, seconds: float, before: set[int]) -> None:
    """Dump the stack of every thread, kill the processes of a test, and make it fail."""
    print(f"\n{test} was still running after {seconds:g} s\n", file=_stderr, flush=True)
    faulthandler.dump_traceback(_stderr, all_threads=True)
    for process in processes_of(test, before):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)


def processes_of(test: str, before: set[int]) -> list[psutil.Process]:
    """Return the processes that a test has started: descendants of this one, and others with pytest's variable for it.

    The latter have lost their parent. Descendants from before the test, such as the server that runs commands, stay.
    """
    started = {process.pid: process for process in psutil.Process().children(recursive=True)}
    marker = f"PYTEST_CURRENT_TEST={test} (".encode()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if marker in Path(f"/proc/{process.pid}/environ").read_bytes() and process.pid != os.getpid():
                started |= {member.pid: member for member in (process, *process.children(recursive=True))}
    return [process for pid, process in started.items() if pid not in before]


def fail(*signalled: object) -> NoReturn:
    """Fail the running test, wherever it is in Python code."""
    pytest.fail("the test was still running after its time limit", pytrace=True)
