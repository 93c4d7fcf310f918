"""Train in several processes on this machine's CPU.

This is torchrun with the settings of one machine: the cores are divided among the processes (OMP_NUM_THREADS, where it
is set, is the number of threads of each), and ports are open on the loopback only. Each update takes a batch from each
process (and --update-freq times as many); checkpoints are those of one process, and the same command resumes from them.
When one process fails, all of them end.
"""

import argparse
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program

MONITOR_SECONDS = 0.1
SHUTDOWN_SECONDS = 5
"""Time that the other processes have to end after one has failed."""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] N -- arguments of fairseq-train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("processes", type=int, metavar="N", help="number of processes")
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="arguments of fairseq-train, after --")
    return parser


def launch(processes: int, arguments: list[str]) -> None:
    """Train with the arguments of ``fairseq-train`` in several processes, and return when all of them have finished.

    Each update uses one batch from each process, in the same way as ``--update-freq`` uses several from one. The
    processes meet through files, so that no port of this machine is open.

    Raises:
        UserError: if a process failed or was killed, or this one received SIGINT or SIGTERM. All processes have ended
            then.
    """
    most = max(2, os.cpu_count() or 1)  # allow two on any machine, for trying it out
    if not 1 <= processes <= most:
        raise UserError(f"{processes} processes: choose a number from 1 to {most}, for the cores of this machine")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _limit_resources(processes)
    with tempfile.TemporaryDirectory() as directory:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="launch_cpu",
            rdzv_backend="c10d",
            rdzv_endpoint=os.path.join(directory, "launcher"),
            rdzv_configs={"store_type": "file"},
            monitor_interval=MONITOR_SECONDS,
            max_restarts=0,
        )
        meet = ["--cpu", "--distributed-init-method", f"file://{directory}/processes"]
        try:
            elastic_launch(config, sys.executable)("-m", "mae_lm_fairseq.training.pretrain", *arguments, *meet)
        except ChildFailedError as error:
            raise UserError(_described(error.failures)) from None
        except SignalException as received:
            raise UserError(f"interrupted by {received.sigval.name}") from None


def _described(failures: Mapping[int, Any]) -> str:
    """Describe the first failure, of those by rank.

    Of those in the same second it is not that of a process that only reports the lost connection, with exit code 1, or
    was stopped because of the failure, by SIGTERM.
    """
    consequences = {1: 1, -signal.SIGTERM: 2}
    rank, failure = min(failures.items(), key=lambda item: (item[1].timestamp, consequences.get(item[1].exitcode, 0)))
    if failure.exitcode < 0:
        return (
            f"process {rank} was killed ({signal.Signals(-failure.exitcode).name}), and the others were stopped; "
            "the same command resumes from the last checkpoint"
        )
    return f"process {rank} ended with exit code {failure.exitcode}, and the others were stopped"


def _limit_resources(processes: int) -> None:
    """Set environment variables that limit the resources of the training processes."""
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))  # older torch: 30 seconds
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # unreachable from other machines


def main() -> None:
    """Run the program."""
    launch(**vars(parser().parse_args()))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
