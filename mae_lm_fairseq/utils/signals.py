"""Handling of signals that end a program during a block of code: Ctrl-C, SIGTERM, and SIGHUP of a closed terminal.

Only the main thread can handle signals, so the blocks change nothing in another one.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mae_lm_fairseq.utils.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a program to end."""


@contextmanager
def handled_by(handler: Callable | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Let another handler handle signals in the block; afterwards, the previous ones do so again.

    SIGHUP stays ignored if it is, as ``nohup`` asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    keeps_running = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in numbers if not (keeps_running and number is signal.SIGHUP)]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def uninterrupted() -> AbstractContextManager[None]:
    """Return a context that ignores these signals, for a block that takes moments only.

    Blocking them would not do: another thread would receive them, and Python calls their handlers in the main one.
    """
    return handled_by(signal.SIG_IGN, *ENDING)


def signals_as_errors() -> AbstractContextManager[None]:
    """Return a context that is left with an Interrupted on a signal, once, so that cleaning up is undisturbed.

    Raises:
        Interrupted: in the block, on the first of ``ENDING``.
    """

    def interrupt(number, frame):
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(f"interrupted by {signal.Signals(number).name}; the same command resumes from here")

    return handled_by(interrupt, *ENDING)
