"""Executors of the parts of a preparation: local processes, or a Dask cluster."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.workers import WorkerPool, worker_died

_SECONDS_TO_CONNECT = 15


def open_executor(workers: int, scheduler: str | None) -> AbstractContextManager[Executor]:
    """Open the executor of a Dask cluster, or of ``workers`` local processes. An error in the block ends its calls.

    Args:
        workers: number of local processes.
        scheduler: address of a Dask scheduler; None for local processes.

    Raises:
        UserError: if the scheduler cannot be reached or is lost, or a worker died.
    """
    return _local(workers) if scheduler is None else _dask(scheduler)


@contextmanager
def _local(workers: int) -> Iterator[Executor]:
    with WorkerPool(workers) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise worker_died() from None
        except BaseException:
            pool.kill()
            raise


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise UserError("--scheduler needs Dask; pip install 'mae_lm_fairseq[dask]'") from None
    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"--scheduler {address}: cannot be reached ({reason}); check address and scheduler") from None
    with client, client.get_executor() as executor:
        try:
            yield executor
        except KilledWorker:
            raise UserError(
                f"--scheduler {address}: several workers died in the same part, perhaps because memory ran out"
            ) from None
        except CancelledError:
            raise UserError(
                f"--scheduler {address}: the connection was lost; finished parts are kept, and the same command resumes"
            ) from None
        except BaseException:
            executor.shutdown(wait=False)
            raise
