"""Handling of Ctrl-C and SIGTERM during a block of code.

Only the main thread can handle signals, so the blocks change nothing in another one.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from mae_lm_fairseq.utils.errors import Interrupted

_BOTH = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled_by(handler: Callable | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Let another handler handle signals in the block; afterwards, the previous ones do so again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def uninterrupted() -> AbstractContextManager[None]:
    """Return a context that ignores Ctrl-C and SIGTERM, for a block that takes moments only.

    Blocking them would not do: another thread would receive them, and Python calls their handlers in the main one.
    """
    return handled_by(signal.SIG_IGN, *_BOTH)


def signals_as_errors() -> AbstractContextManager[None]:
    """Return a context that is left with an Interrupted on Ctrl-C or SIGTERM, once, so that cleaning up is undisturbed.

    Raises:
        Interrupted: in the block, on the first of these signals.
    """

    def interrupt(number, frame):
        for each in _BOTH:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(f"interrupted by {signal.Signals(number).name}; the same command resumes from here")

    return handled_by(interrupt, *_BOTH)
