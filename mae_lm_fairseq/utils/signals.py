"""Handling of the signals that ask a program to end.

These are Ctrl-C, SIGTERM, SIGHUP of a closed terminal, and SIGUSR1, with which Slurm announces a time limit. Only the
main thread can set handlers, so the blocks change nothing in another one.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from mae_lm_fairseq.utils.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a program to end."""
SECONDS_WITHOUT_PARENT = 5
"""Seconds after which a data worker notices that its parent has ended, at most."""
REPEATED_WITHIN = 3.0
"""Seconds in which further signals belong to the first one.

``timeout``, torchrun and groups of processes send a process the same request several times.
"""


@contextmanager
def handled_by(handler: Callable | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Let another handler handle signals in the block; afterwards, the previous ones do so again.

    SIGHUP stays ignored if it is, as ``nohup`` asks for. A signal that the parent process has blocked is received.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = list(numbers)
    if signal.SIGHUP in handled and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        handled.remove(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in handled}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
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


@contextmanager
def signals_as_errors(outlook: str = "; the same command resumes from here") -> Iterator[None]:
    """Leave the block with an Interrupted on a signal, once, so that cleaning up is undisturbed.

    A library may catch the error, for example while it is imported, and raise another one, which is replaced, or
    none. So a later signal ends the program at once.

    Args:
        outlook: end of the error message: what the same command does next.

    Raises:
        Interrupted: in the block, on the first of ``ENDING``.
    """
    interrupted, began = None, 0.0

    def interrupt(number, frame):
        nonlocal interrupted, began
        if interrupted is None:
            began = time.monotonic()
            interrupted = Interrupted(f"interrupted by {signal.Signals(number).name}{outlook}", number)
            raise interrupted
        if time.monotonic() - began > REPEATED_WITHIN:
            say(f"{signal.Signals(number).name}: ended at once")
            os._exit(128 + number)

    with handled_by(interrupt, *ENDING):
        try:
            yield
        except Exception as error:
            if interrupted is None:
                raise
            raise interrupted from error


@contextmanager
def signals_end_the_program() -> Iterator[None]:
    """Let a signal end the program, whose work is the block, as an error; further signals are ignored until its end."""
    try:
        with signals_as_errors(outlook=""):
            yield
    except Interrupted:
        ignore_until_the_end()
        raise


def ignore_until_the_end() -> None:
    """Ignore further signals while the program ends, which takes Python a second; they would change its exit code."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def say(text: str) -> None:
    """Write a line to the standard error, from any thread and without waiting for a lock of another one."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals in the block: a new process inherits the mask, so none reaches it before it has its handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def requests_to_end(
    first: Callable[[signal.Signals], None], second: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call a function on the first signal of ``ENDING`` in the block, and another one on a later signal.

    They are called in a thread of their own. Python calls handlers in the main thread, once that is not in C code; it
    may be waiting there for a process that has died. After a first signal, the program ends with the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watch = threading.Thread(target=_watch, args=(reading, first, second), daemon=True)
    previous = signal.set_wakeup_fd(writing)  # before a signal that was blocked is received
    watch.start()
    try:
        with handled_by(_note, *ENDING):
            yield
    finally:
        signal.set_wakeup_fd(previous)
        os.write(writing, _END_OF_WATCH)
        watch.join()
        os.close(reading)
        os.close(writing)


_END_OF_WATCH = b"\0"


def _note(number: int, frame: object) -> None:
    """Do nothing: with a handler of Python's, the number of a signal is written to the pipe at once."""


def _watch(reading: int, first: Callable[[signal.Signals], None], second: Callable[[signal.Signals], None]) -> None:
    began = None
    while (byte := os.read(reading, 1)) != _END_OF_WATCH:
        number = byte[0]
        if number not in ENDING:  # of another handler in this process
            continue
        if began is None:
            began = time.monotonic()
            first(signal.Signals(number))
        elif time.monotonic() - began > REPEATED_WITHIN:
            second(signal.Signals(number))


def _forget_requests() -> None:
    """Let a forked process end on signals, instead of passing them to its parent's pipe."""
    noted = [number for number in ENDING if signal.getsignal(number) is _note]
    if noted:
        signal.set_wakeup_fd(-1)
    for number in noted:
        signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_requests)


def heed_parent_only(worker: int = 0) -> None:
    """Let this process, which its parent has started with blocked signals, end when the parent sends SIGTERM only.

    A signal for a group of processes also reaches data workers. If they ended, their parent could not make another
    update.

    Args:
        worker: number of the data worker, which torch passes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    others = {number for number in ENDING if number is not signal.SIGTERM}
    for number in others:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_when_parent_asks, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, others)


def _end_when_parent_asks() -> None:
    """End this process on SIGTERM of its parent, or soon after the parent has ended without one."""
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        received = signal.sigtimedwait({signal.SIGTERM}, SECONDS_WITHOUT_PARENT)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)
