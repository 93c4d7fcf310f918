"""Training in several processes on one machine's CPU, which exchange gradients over gloo.

fairseq starts a process for each GPU, and so none where there is no GPU. This starts as many as asked for; what each
of them does is fairseq's own ``distributed_main``.
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
# legacy_ddp, because pytorch_ddp asks for the number of a GPU.
SETTINGS = {"--distributed-backend": "gloo", "--ddp-backend": "legacy_ddp"}
NOT_FOR_USERS = {
    *SETTINGS, "--distributed-world-size", "--distributed-init-method", "--distributed-rank", "--distributed-port",
    "--distributed-no-spawn", "--distributed-num-procs", "--device-id", "--local_rank",
}  # fmt: skip


def launch(processes: int, arguments: list[str]) -> None:
    """Trains with the arguments of ``fairseq-train`` in several processes, and returns when all of them are done.

    Each update takes a batch from each process, as ``--update-freq`` takes several from one.

    Raises:
        UserError: a setting is wrong, or a process failed or was killed. None of the processes is left then.
        Interrupted: this process got SIGINT or SIGTERM. None of the processes is left then either.
    """
    _check(processes, arguments)
    with signals_as_errors(), tempfile.TemporaryDirectory() as directory:
        cfg = configuration(processes, arguments, os.path.join(directory, "rendezvous"))
        option_checks.check_settings(cfg)
        _share_the_machine(processes)
        _run(processes, cfg)


def _check(processes: int, arguments: list[str]) -> None:
    most = max(2, os.cpu_count() or 1)  # two are let through everywhere, to try things out
    if not 1 <= processes <= most:
        raise UserError(f"{processes} processes: give a number from 1 to {most}, what this machine has cores for")
    for argument in arguments:
        if argument.partition("=")[0] in NOT_FOR_USERS:
            raise UserError(f"leave out {argument}: the launcher sets it for its processes")


def configuration(processes: int, arguments: list[str], rendezvous: str) -> DictConfig:
    """What ``fairseq-train`` makes of its arguments, for processes that meet in the file ``rendezvous``."""
    settings = {
        **SETTINGS,
        "--distributed-world-size": str(processes),
        "--distributed-init-method": f"file://{rendezvous}",
    }
    register()
    # fairseq looks for --user-dir in the command line of the program, whatever it is asked to parse.
    sys.argv = ["fairseq-train", *arguments, "--cpu", *(word for setting in settings.items() for word in setting)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser()))
    cfg.distributed_training.distributed_rank = None  # each process fills in its own
    return cfg


def _share_the_machine(processes: int) -> None:
    """Tells the processes through their environment what they may use."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // processes)))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # fairseq's communication would use a GPU in spite of --cpu
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # out of reach for other machines


# ------------------------------------------------------------------------------------------------------- the launcher


def _run(number: int, cfg: DictConfig) -> None:
    context = multiprocessing.get_context("spawn")
    complaints = context.SimpleQueue()
    processes = [context.Process(target=_train, args=(rank, cfg, complaints)) for rank in range(number)]
    try:
        for process in processes:
            process.start()
        while any(process.exitcode is None for process in processes):
            time.sleep(POLL_SECONDS)
            _raise_failure(processes, complaints)
        _raise_failure(processes, complaints)  # of what ended after the last look
    finally:
        for process in processes:
            _end(process)


def _raise_failure(processes: list[multiprocessing.Process], complaints: SimpleQueue) -> None:
    """Tells of the first failure in one line. What is an exception of the program has its traceback above that."""
    codes = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
    # First, because the others complain of the connection to a process that was killed.
    for rank, code in codes.items():
        if code < 0:
            raise UserError(
                f"process {rank} was killed ({signal.Signals(-code).name}), and the others were stopped; "
                "the same command goes on from the last checkpoint"
            )
    if not complaints.empty():
        message, details = complaints.get()
        sys.stderr.write(details)
        raise UserError(message)
    for rank, code in codes.items():
        raise UserError(f"process {rank} ended with exit code {code}, and the others were stopped")


def _end(process: multiprocessing.Process) -> None:
    """Ends a process that may be anywhere between its start and its end, and its data workers with it."""
    if process.pid is None:
        return
    process.kill()  # alone until it has made its group
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


# ------------------------------------------------------------------------------------------------------ the processes


def _train(rank: int, cfg: DictConfig, complaints: SimpleQueue) -> None:
    """What each process does. Its errors go to the launcher, which tells of one of them."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it in silence
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    # Data workers are forked, as those of a single fairseq-train; as children of a spawned process they would be
    # spawned too, and import everything again in every epoch.
    multiprocessing.set_start_method(None, force=True)
    try:
        register()
        fairseq_distributed_main(rank, train, cfg, {})
    except UserError as error:
        complaints.put((str(error), ""))
        sys.exit(1)
    except Exception:
        complaints.put((f"process {rank} failed as told above, and the others were stopped", traceback.format_exc()))
        sys.exit(1)


def _end_with_launcher() -> None:
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)
