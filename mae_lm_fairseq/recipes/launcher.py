"""Launcher for training in several processes on one machine's CPU, with gradients exchanged over gloo.

fairseq itself starts one process per GPU, and cannot start several on a CPU. This launcher starts as many as requested;
each of them runs fairseq's own ``distributed_main``.
"""

import fairseq_cli.train  # noqa: F401, I001  sets up logging, in each process: must come before the rest of fairseq

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing.queues import SimpleQueue

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli.train import main as train
from omegaconf import DictConfig

from mae_lm_fairseq import register
from mae_lm_fairseq.fairseq_patches import option_checks
from mae_lm_fairseq.fairseq_patches.processes import fairseq_distributed_main
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.runner import signals_as_errors

POLL_SECONDS = 0.1
# legacy_ddp, because pytorch_ddp requires a GPU number.
SETTINGS = {"--distributed-backend": "gloo", "--ddp-backend": "legacy_ddp"}
NOT_FOR_USERS = {
    *SETTINGS, "--distributed-world-size", "--distributed-init-method", "--distributed-rank", "--distributed-port",
    "--distributed-no-spawn", "--distributed-num-procs", "--device-id", "--local_rank",
}  # fmt: skip


def launch(processes: int, arguments: list[str]) -> None:
    """Train with the arguments of ``fairseq-train`` in several processes, and return when all of them have finished.

    Each update uses one batch from each process, in the same way as ``--update-freq`` uses several from one.

    Raises:
        UserError: if a setting is invalid, or a process failed or was killed. All processes have ended then.
        Interrupted: if this process received SIGINT or SIGTERM. All processes have ended then.
    """
    _check(processes, arguments)
    with signals_as_errors(), tempfile.TemporaryDirectory() as directory:
        cfg = configuration(processes, arguments, os.path.join(directory, "rendezvous"))
        option_checks.check_settings(cfg)
        _limit_resources(processes)
        _run(processes, cfg)


def _check(processes: int, arguments: list[str]) -> None:
    most = max(2, os.cpu_count() or 1)  # allow two on any machine, for trying it out
    if not 1 <= processes <= most:
        raise UserError(f"{processes} processes: choose a number from 1 to {most}, for the cores of this machine")
    for argument in arguments:
        if argument.partition("=")[0] in NOT_FOR_USERS:
            raise UserError(f"remove {argument}: the launcher sets it for its processes")


def configuration(processes: int, arguments: list[str], rendezvous: str) -> DictConfig:
    """Return ``fairseq-train``'s configuration for its arguments; processes connect through the file ``rendezvous``."""
    settings = {
        **SETTINGS,
        "--distributed-world-size": str(processes),
        "--distributed-init-method": f"file://{rendezvous}",
    }
    register()
    # fairseq looks for --user-dir in sys.argv, even if it is given other arguments to parse.
    sys.argv = ["fairseq-train", *arguments, "--cpu", *(word for setting in settings.items() for word in setting)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser()))
    cfg.distributed_training.distributed_rank = None  # each process sets its own
    return cfg


def _limit_resources(processes: int) -> None:
    """Set environment variables that limit the resources of the training processes."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // processes)))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # fairseq's communication would use a GPU despite --cpu
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # unreachable from other machines


# ------------------------------------------------------------------------------------------------------- the launcher


def _run(number: int, cfg: DictConfig) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    processes = [context.Process(target=_train, args=(rank, cfg, failures)) for rank in range(number)]
    try:
        for process in processes:
            process.start()
        while any(process.exitcode is None for process in processes):
            time.sleep(POLL_SECONDS)
            _raise_failure(processes, failures)
        _raise_failure(processes, failures)  # of processes that ended after the last check
    finally:
        for process in processes:
            _end(process)


def _raise_failure(processes: list[multiprocessing.Process], failures: SimpleQueue) -> None:
    """Raise the first failure as a UserError; print the traceback of an unexpected exception before."""
    codes = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
    # Killed processes first, because the others only report the lost connection to them.
    for rank, code in codes.items():
        if code < 0:
            raise UserError(
                f"process {rank} was killed ({signal.Signals(-code).name}), and the others were stopped; "
                "the same command resumes from the last checkpoint"
            )
    if not failures.empty():
        message, details = failures.get()
        sys.stderr.write(details)
        raise UserError(message)
    for rank, code in codes.items():
        raise UserError(f"process {rank} ended with exit code {code}, and the others were stopped")


def _end(process: multiprocessing.Process) -> None:
    """Kill a process in any state, together with its data workers."""
    if process.pid is None:
        return
    process.kill()  # the process itself, which may not have created its group yet
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


# ------------------------------------------------------------------------------------------------------ the processes


def _train(rank: int, cfg: DictConfig, failures: SimpleQueue) -> None:
    """Run a training process; errors are sent to the launcher, which reports one of them."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit without a message
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    # Fork data workers as a single fairseq-train does. In a spawned process the default would be to spawn them, which
    # repeats all imports in every epoch.
    multiprocessing.set_start_method(None, force=True)
    try:
        register()
        fairseq_distributed_main(rank, train, cfg, {})
    except UserError as error:
        failures.put((str(error), ""))
        sys.exit(1)
    except Exception:
        failures.put(
            (f"process {rank} failed with the error above, and the others were stopped", traceback.format_exc())
        )
        sys.exit(1)


def _end_with_launcher() -> None:
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)
