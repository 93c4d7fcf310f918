"""Experiment runner: executes a table of commands, each of which produces one result file.

A run whose result file exists is skipped. An interrupted run is started again and resumes from whatever its command
keeps (``fairseq-train``: ``checkpoint_last.pt``), unless its command has changed since. The runner writes result files
atomically, as soon as a run ends.
"""

import contextlib
import fcntl
import fnmatch
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import torch

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.progress import progress_bar
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.utils.training_log import last_update

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10
"""Time that a process has to end after SIGTERM, before it is killed."""
REWRITTEN = "ema"
"""A directory in a reserved one that every start writes again."""


@dataclass(frozen=True)
class Run:
    """One command and its result.

    Args:
        name: name in the progress display and in messages.
        command: the program and its arguments.
        result: JSON file that marks the run as done; beside it are its log, with the suffix ``.log``, and the command
            that was last started, with the suffix ``.command.json``.
        read_result: reads the output of the finished run into a dictionary for the result file.
        fraction_done: returns the fraction of the run that is done, in [0, 1].
        clean_up: is called once the result file is written, and again for a run that was done before, because the
            runner may have been killed in between; removes what only resuming needs.
    """

    name: str
    command: Sequence[str]
    result: Path
    read_result: Callable[["Run"], dict]
    fraction_done: Callable[["Run"], float] = lambda run: 0.0
    clean_up: Callable[["Run"], None] = lambda run: None

    @property
    def log(self) -> Path:
        return self.result.with_suffix(".log")

    @property
    def started(self) -> Path:
        return self.result.with_suffix(".command.json")

    def has_checkpoints(self) -> bool:
        """Return whether there are checkpoints in the ``--save-dir`` of the command."""
        folders = [value for option, value in pairwise(self.command) if option == "--save-dir"]
        return bool(folders) and any(Path(folders[-1]).glob("*.pt"))


def updates_done(max_update: int) -> Callable[[Run], float]:
    """Return ``Run.fraction_done`` for ``fairseq-train --log-format json --max-update MAX_UPDATE``."""
    return lambda run: min(1.0, last_update(run.log) / max_update)


def run_all(runs: Sequence[Run], jobs: int = 1, threads: int = 1) -> list[dict]:
    """Run everything that has no result yet, and return all results in the order of ``runs``.

    Args:
        runs: the runs.
        jobs: number of runs at the same time.
        threads: threads of each run, and for reading its result while other runs are active.

    Raises:
        UserError: if a run fails, or results or checkpoints come from another command. Active runs are ended first.
        Interrupted: if the program receives SIGINT or SIGTERM. Active runs are ended first.
    """
    waiting = [run for run in runs if not _is_done(run)]
    if not waiting:
        return [read_result(run) for run in runs]
    processes: list[_Process] = []
    with signals_as_errors(), _ending(processes), _Display(runs) as display:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                processes += _start(waiting.pop(0), threads)
            time.sleep(POLL_SECONDS)
            display.show([process.run for process in processes])
            for process in [process for process in processes if process.handle.poll() is not None]:
                processes.remove(process)
                process.finish()
    return [read_result(run) for run in runs]


def read_result(run: Run) -> dict | None:
    """Return the content of the run's result file, or None if there is no valid one yet."""
    return _read_file(run.result).get("result")


def _read_file(path: Path) -> dict[str, Any]:
    """Return the content of a file of the runner; empty if it is missing or is not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def reserve(out: Path, options: dict[str, Any], may_change: Sequence[str] = (), owned: Sequence[str] = ()):
    """Reserve a directory for these options, or refuse one that holds files made with other options.

    A reserved directory that holds nothing else, but :data:`REWRITTEN`, can be reserved again, for example after a
    start that failed early.

    Args:
        out: the directory.
        options: the options, as JSON.
        may_change: names of options that are not compared.
        owned: names in the directory, or patterns of names, that the command will reuse, overwrite or remove.

    Raises:
        UserError: if options differ, or one of the owned names exists in a directory that was not reserved before (the
            message names them); or the directory cannot be written.
    """
    path = out / "options.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        names = [] if path.exists() else os.listdir(out)
        if foreign := [name for pattern in owned for name in fnmatch.filter(names, pattern)]:
            raise UserError(
                f"--out {out} has {foreign[0]} but no options.json, so another command made it; move it, or choose "
                "another --out"
            )
        files = (file for file in out.rglob("*") if not file.is_dir() and file.parent != out / REWRITTEN)
        is_used = path.exists() and any(file != path for file in files)
        before = json.loads(path.read_text(encoding="utf-8")) if is_used else options
        if not isinstance(before, dict):
            raise ValueError
        compared = (options.keys() | before.keys()) - set(may_change)
        differing = sorted(key for key in compared if options.get(key) != before.get(key))
        if differing:
            names = ", ".join(differing)
            raise UserError(f"{out} has results of other settings: {names} ({path}); choose another --out")
        write_json(path, options)
    except ValueError:
        raise UserError(f"{path} is damaged; choose another --out") from None
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there: {error.strerror}") from None


def _is_done(run: Run) -> bool:
    _check_command(run)
    if read_result(run) is None:
        return False
    print(f"{run.name}: done before, reusing {run.result}")
    run.clean_up(run)
    return True


def _check_command(run: Run) -> None:
    """Check that result or checkpoints come from the command of the run.

    Before the first checkpoint the command can be corrected. Checkpoints of older versions have no record of it.

    Raises:
        UserError: if they come from another one.
    """
    finished = _read_file(run.result)
    if finished.get("result") is not None:
        what, before = f"{run.result} is the result", finished.get("command", [])
    elif run.has_checkpoints():
        what, before = f"{run.result.parent} has checkpoints", _read_file(run.started).get("command", run.command)
    else:
        return
    old, new = _comparable(before), _comparable(run.command)
    if old != new:
        differing = ", ".join(sorted(set(old) ^ set(new)))
        raise UserError(
            f"{what} of another command ({differing}); repeat that one, remove {run.result.parent}, with its "
            "checkpoints, or choose another directory"
        )


def _comparable(command: Sequence[str]) -> list[str]:
    """Return the options of a command, without the paths of Python and of this package."""
    options = " ".join(command[1:]).split(" --")
    return [f"--{option}" for option in options[1:] if not option.startswith("user-dir ")] + options[:1]


def _start(run: Run, threads: int) -> list["_Process"]:
    """Start a run; return no process if another runner has finished the run in the meantime."""
    run.result.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(run.log, "ab"))
        _wait_for_other_runner(run, log)
        if _is_done(run):
            return []
        run.result.unlink(missing_ok=True)
        write_json(run.started, {"command": list(run.command)})
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        # In a new session, so that only the runner receives Ctrl-C. It then ends the run and all that it started.
        handle = subprocess.Popen(run.command, stdout=log, stderr=log, env=os.environ | limits, start_new_session=True)
        stack.pop_all()
    return [_Process(run, threads, log, handle)]


@dataclass
class _Process:
    """The process of an active run, with its locked log."""

    run: Run
    threads: int
    log: BinaryIO
    handle: subprocess.Popen
    began: float = field(default_factory=time.monotonic)

    def finish(self) -> None:
        """Write the result file, and release the lock.

        Raises:
            UserError: if the process failed.
        """
        with self.log:
            self._write_result()

    def _write_result(self) -> None:
        run = self.run
        if self.handle.returncode != 0:
            raise UserError(
                f"{run.name} failed (exit code {self.handle.returncode}), {run.log} ends: {_last_line(run.log)}"
            )
        content = {"name": run.name, "command": list(run.command), "seconds": round(time.monotonic() - self.began, 1)}
        with _limited(self.threads):
            result = run.read_result(run)
        write_json(run.result, content | {"result": result})
        run.clean_up(run)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.handle.pid, number)


@contextlib.contextmanager
def _limited(threads: int) -> Iterator[None]:
    """Limit torch's threads: with one run per core, more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _ending(processes: list[_Process]) -> Iterator[None]:
    """End the processes that are in the list when the block is left, with all that they started."""
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.handle.wait(max(0.0, deadline - time.monotonic()))
            process.signal(signal.SIGKILL)
            process.handle.wait()
            process.log.close()


class _Display:
    """Progress bar over all runs, with the fraction done of each active run and the estimated time left."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.done = self._done()
        form = "{percentage:3.0f}%|{bar:25}| {elapsed}, {remaining} left{postfix}"
        # No smoothing, because runs differ in speed and the overall average is the better estimate.
        self.bar = progress_bar(total=len(runs), initial=self.done, bar_format=form, smoothing=0)

    def __enter__(self) -> "_Display":
        return self

    def __exit__(self, *error) -> None:
        self.show([])
        self.bar.close()

    def show(self, running: list[Run]) -> None:
        fractions = [f"{run.name} {run.fraction_done(run):.0%}" for run in running]
        self.bar.set_postfix_str(", ".join(fractions), refresh=False)
        done = self._done()
        # A run that resumes goes back to its last checkpoint; the time left is estimated from there.
        self.bar.initial = min(self.bar.initial, done)
        self.bar.update(done - self.done)
        self.done = done

    def _done(self) -> float:
        return sum(1.0 if run.result.exists() else run.fraction_done(run) for run in self.runs)


def _wait_for_other_runner(run: Run, log: BinaryIO) -> None:
    """Wait for another runner of this run, or for a process that outlived a killed one, and lock the log.

    Two processes would write to the same checkpoints. The runner and every process of a run hold the lock, which is
    released when the result is written and the last process has ended. File systems without locks are not checked.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{run.name}: still running, started by another runner; waiting for its end", flush=True)
        fcntl.flock(log, fcntl.LOCK_EX)
    except OSError:
        pass


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(nothing)")
