"""Subprocesses started by tests.

Importing torch and fairseq takes several seconds of CPU time. :func:`fairseq_train` and others therefore run
their commands in children of a server that has already imported both (multiprocessing's fork server). Like a real
command, each child has its own streams and exit code. :func:`run_command` runs a real command.
"""

import contextlib
import functools
import gc
import io
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil

from mae_lm_fairseq.training import runner
from mae_lm_fairseq.utils import workers
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.signals import ENDING
from tests.support import ROOT, words_of

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment of the commands; asking CUDA itself for GPUs in the server would keep its children from using them."""
LONGEST_COMMAND_SECONDS = 560.0
"""Below the time limit of a test, so that a command that hangs is reported with its output."""
SERVER_STOPS_SECONDS = 30.0
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["fairseq_cli.train", "torch._dynamo", "mae_lm_fairseq.study.engine", __name__]
_SERVER.set_forkserver_preload(_PRELOADED)


def fork(function: Callable, *args, **options) -> multiprocessing.Process:
    """Start a forked process that calls a function and can be interrupted with SIGINT."""

    def call():
        global _SERVER
        # Background processes of a shell without job control ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _SERVER = multiprocessing.get_context("fork")  # the server is a child of another process
        gc.callbacks.clear()  # hypothesis registers one; a KeyboardInterrupt raised in it is lost
        with errors_end_the_program():
            function(*args, **options)

    process = multiprocessing.get_context("fork").Process(target=call)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return process


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Suspend coverage tracing, which makes third-party code two to five times slower; also usable as a decorator."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until a condition holds; the time limit is generous for a loaded machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds"
        time.sleep(0.02)


def kill_with_children(process: subprocess.Popen | multiprocessing.Process) -> None:
    """Kill a process and all that it has started with SIGKILL."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait() if isinstance(process, subprocess.Popen) else process.join()


def run_command(
    command: list, *, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = LONGEST_COMMAND_SECONDS
) -> subprocess.CompletedProcess:
    """Run a command of this Python environment."""
    program, *arguments = words_of(*command)
    return subprocess.run(
        [Path(sys.executable).parent / program, *arguments],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **(env or {})},
        timeout=timeout,
        capture_output=True,
        text=True,
    )


def fairseq_train(*arguments: object, threads: int = 1) -> subprocess.CompletedProcess:
    """Run ``fairseq-train`` in the checkout, in a child of the server."""
    return _run_in_child(functools.partial(_train, threads, {}), ["fairseq-train", *arguments])


def mae_lm(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run ``mae-lm`` in a directory, in a child of the server."""
    return _run_in_child(_mae_lm, ["mae-lm", *arguments], cwd)


def start_training(arguments: Sequence[object], log: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start ``fairseq-train`` in the checkout, in a child of the server that writes to a log."""
    words = words_of("fairseq-train", *arguments)
    return _start(_child, functools.partial(_train, 1, environment), words, ROOT, log, log)


def train_together(processes: int, *arguments: object) -> subprocess.CompletedProcess:
    """Run ``fairseq-train --cpu`` in several connected processes in the checkout, as torchrun does."""
    with tempfile.TemporaryDirectory() as directory:
        logs = [Path(directory, str(rank)) for rank in range(processes)]
        jobs = [variables | {"LOCAL_RANK": variables["RANK"]} for variables in connected(processes)]
        started = [start_training([*arguments, "--cpu"], log, job) for log, job in zip(logs, jobs, strict=True)]
        for process in started:
            process.join(LONGEST_COMMAND_SECONDS)
            process.kill()
        stdout, stderr = logs[0].read_text(), "".join(log.read_text() for log in logs)
    return subprocess.CompletedProcess(arguments, max(abs(process.exitcode) for process in started), stdout, stderr)


def connected(processes: int) -> list[dict[str, str]]:
    """Return the environment variables with which each process of a job on this machine finds the others."""
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    return [job | {"RANK": str(rank)} for rank in range(processes)]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


def torchrun_command(processes: int, *arguments: object) -> list[str]:
    """Return the command that runs ``fairseq-train --cpu`` in several processes."""
    start = ["torchrun", "--standalone --nproc-per-node", processes, "--monitor-interval 0.1"]
    return words_of(*start, "--module fairseq_cli.train", *arguments, "--cpu")


@contextlib.contextmanager
def runs_in_children() -> Iterator[None]:
    """Let the runner start its runs, and the ``fairseq-train`` of each, without importing torch and fairseq again."""
    with mock.patch.object(runner, "start_process", _start_run):
        yield


def _start_run(environment: Mapping[str, str], function: Callable, *arguments) -> multiprocessing.Process:
    return _start(_run, environment, function, arguments)


def _run(environment: Mapping[str, str], function: Callable, arguments: tuple) -> None:
    import torch

    sys.settrace(None)
    multiprocessing.set_start_method(None, force=True)
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    runner.subprocess = SimpleNamespace(Popen=_FairseqTrain)
    runner.start_process = _start_run  # of runs of this run, as of the fine-tunings that a study measures with
    workers._start(function, arguments)


class _FairseqTrain:
    """A ``fairseq-train`` that is forked, with what the runner uses of a Popen."""

    def __init__(self, command: list[str]):
        self._process = multiprocessing.get_context("fork").Process(target=_train_as, args=(command,))
        self._process.start()
        self.terminate = self._process.terminate

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        self._process.join()
        return self._process.exitcode


def _train_as(command: list[str]) -> None:
    from fairseq_cli.train import cli_main

    for number in ENDING:  # as in a new program
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["fairseq-train", *command[3:]]
    cli_main()


def stop_server() -> None:
    """Stop the server and wait for it, so that this process is charged with the CPU time of the server's children.

    The server runs as long as a process holds its pipe. A process that a test has left does so, and it may never end.
    """
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    if server is None:
        return
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    kill = threading.Timer(SERVER_STOPS_SECONDS, os.kill, (server, signal.SIGKILL))
    kill.start()
    multiprocessing.forkserver._forkserver._stop()
    kill.cancel()


def kill_left_processes() -> None:
    """Kill the processes that the tests have left, and name them.

    The directory for temporary files, which is of this run alone, tells them from others.
    """
    directory = f"TMPDIR={os.environ['TMPDIR']}".encode()
    staying = {os.getpid(), multiprocessing.resource_tracker._resource_tracker._pid}
    for process in psutil.process_iter():
        if process.pid in staying:
            continue
        with contextlib.suppress(OSError, psutil.Error):
            if directory in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                print(f"killed, as a test left it: {shlex.join(process.cmdline())}", file=sys.__stderr__)
                process.kill()


def _start(function: Callable, *arguments) -> multiprocessing.Process:
    """Call a function in a child of the server; the first one starts the server, which inherits the environment."""
    process = _SERVER.Process(target=function, args=arguments)
    with mock.patch.dict(os.environ, ENVIRONMENT):
        process.start()
    return process


def _train(threads: int, environment: Mapping[str, str]) -> None:
    import torch
    from fairseq_cli.train import cli_main

    os.environ.update(environment)
    torch.set_num_threads(threads)
    cli_main()


def _mae_lm() -> None:
    from mae_lm_fairseq.cli import main

    sys.exit(main())


def _run_in_child(main: Callable[[], None], command: list, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    words = words_of(*command)
    with tempfile.TemporaryDirectory() as directory:
        outputs = [Path(directory, name) for name in ("stdout", "stderr")]
        process = _start(_child, main, words, cwd, *outputs)
        process.join(LONGEST_COMMAND_SECONDS)
        stdout, stderr = (path.read_text(errors="replace") if path.exists() else "" for path in outputs)
    if process.exitcode is None:
        process.kill()
        raise subprocess.TimeoutExpired(words, LONGEST_COMMAND_SECONDS, stdout, stderr)
    return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


def _child(main: Callable[[], None], words: list[str], cwd: Path, stdout: Path, stderr: Path) -> None:
    sys.settrace(None)  # coverage does not trace real commands either
    multiprocessing.set_start_method(None, force=True)  # data workers are forked, as in a real command
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        assert isinstance(stream, io.TextIOWrapper)
        with open(path, "a") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    sys.argv = words
    try:
        main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
