"""Worker processes that inherit nothing from their parent process, and those of a Dask cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.signals import ENDING, signals_blocked


class WorkerPool(ProcessPoolExecutor):
    """Executor whose workers are spawned, end with their parent and ignore Ctrl-C.

    A forked worker has its parent's signal handlers until it installs its own. If another worker dies in that moment,
    the executor sends SIGTERM to the new one. A handler that raises then unwinds the parent's stack *in the worker*,
    which becomes a second copy of the program, and the executor waits for it forever.

    Leaving the ``with`` block cancels calls that have not started.
    """

    def __init__(self, workers: int, initializer: Callable | None = None, initargs: tuple = ()):
        context = multiprocessing.get_context("spawn")
        super().__init__(workers, context, initializer=_start, initargs=(initializer, initargs))

    def submit(self, function: Callable, /, *args, **kwargs) -> Future:
        """Submit a call, and start a worker if none is idle."""
        with signals_blocked():
            return super().submit(function, *args, **kwargs)

    def __exit__(self, *_) -> None:
        if self._broken:
            # The thread that ends the workers of a broken pool does not know a worker that was being started when
            # another one died, but waits for it, too (CPython 3.11; since 3.14, kill_workers() does this).
            self.kill()
        self.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """Kill the workers, whose calls then fail."""
        for process in list(self._processes.values()):
            process.kill()


def start_process(environment: Mapping[str, str], function: Callable, *arguments) -> BaseProcess:
    """Call a function of a module in a spawned process that ends with its parent and ignores Ctrl-C.

    Args:
        environment: environment variables to add, such as a limit of threads, which libraries read when they load.
    """
    process = multiprocessing.get_context("spawn").Process(target=_start, args=(function, arguments))
    with signals_blocked(), environment_of(environment):
        process.start()
    return process


@contextmanager
def environment_of(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def available_cores() -> int:
    """Return the number of cores that this process may use: those of its job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Workers = tuple[Executor | None, int]
"""Executor in other processes, None if this process does the work; and the number of calls that it runs at a time."""


def open_workers(processes: int, scheduler: str | None) -> AbstractContextManager[Workers]:
    """Open a Dask cluster, or local processes; one process is this one. An error in the block ends their calls.

    Args:
        scheduler: address of a Dask scheduler; None for local processes.

    Raises:
        UserError: if a local worker died.
    """
    if scheduler is not None:
        return _dask(scheduler)
    return _local(processes) if processes > 1 else nullcontext((None, 1))


@contextmanager
def _local(processes: int) -> Iterator[Workers]:
    with WorkerPool(processes) as pool:
        try:
            yield pool, processes
        except BrokenProcessPool:
            raise UserError("a worker process died, perhaps because memory ran out; try fewer --workers") from None
        except BaseException:
            pool.kill()
            raise


@contextmanager
def _dask(address: str) -> Iterator[Workers]:
    from distributed import Client  # in the extra dask

    with Client(address, set_as_default=False) as client, client.get_executor() as executor:
        try:
            yield executor, max(1, sum(client.ncores().values()))
        except BaseException:
            executor.shutdown(wait=False)
            raise


def _start(initializer: Callable | None, initargs: tuple) -> None:
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    """End this worker if its parent is killed; otherwise it would wait for work forever."""
    connection.wait([parent_process().sentinel])
    os._exit(1)
