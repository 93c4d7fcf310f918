"""The end of a test that hangs: stacks on stderr, then SIGKILL to its whole process group.

pytest-timeout by itself ends the process that runs the test; the processes that the test has started would stay, and
``scripts/test.sh`` would wait for the pipes that they hold open.
"""

import faulthandler
import os
import signal
import sys
import threading

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings) -> bool:
    """Called by pytest-timeout before each test; ``item.cancel_timeout`` is what it calls afterwards."""
    timer = threading.Timer(settings.timeout, end_process_group, (item.nodeid, settings.timeout))
    timer.daemon = True
    item.cancel_timeout = timer.cancel
    timer.start()
    return True


def end_process_group(test: str, seconds: float) -> None:
    """Dump the stack of every thread and kill this process's group, itself included."""
    print(f"\n{test} was still running after {seconds:g} s\n", file=sys.__stderr__, flush=True)
    faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    os.killpg(0, signal.SIGKILL)
