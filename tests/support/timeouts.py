"""Timeout for tests: print all stacks to the stderr of the run, then SIGKILL the whole process group.

pytest-timeout alone kills only the process that runs the test. Processes started by the test would survive, and
``scripts/test.sh`` would wait for the pipes that they hold open.
"""

import faulthandler
import os
import signal
import sys
import threading

import pytest

_stderr = sys.__stderr__


def pytest_configure() -> None:
    """Keep the stderr of the run: during a test, pytest captures file descriptor 2, and SIGKILL would lose the dump."""
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings) -> bool:
    """Start the timer of a test.

    pytest-timeout calls this hook before each test, and ``item.cancel_timeout`` after it.
    """
    timer = threading.Timer(settings.timeout, end_process_group, (item.nodeid, settings.timeout))
    timer.daemon = True
    item.cancel_timeout = timer.cancel
    timer.start()
    return True


def end_process_group(test: str, seconds: float) -> None:
    """Dump the stack of every thread and kill the process group, including this process."""
    print(f"\n{test} was still running after {seconds:g} s\n", file=_stderr, flush=True)
    faulthandler.dump_traceback(_stderr, all_threads=True)
    os.killpg(0, signal.SIGKILL)
