"""Experiment runner: executes a table of runs, each of which produces one result file.

A run is a command, a function that reads its result, or both. Functions are called in child processes, so that no run
waits for another one's evaluation. A run whose result file exists is skipped. An interrupted run is started again and
resumes from whatever its command keeps (``fairseq-train``: ``checkpoint_last.pt``). Result files are written
atomically, as soon as a run ends.
"""

import contextlib
import fcntl
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

from mae_lm_fairseq.training.training_log import last_update
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.output import progress_bar
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.utils.workers import start_process

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 10
"""Time that a process has to end after SIGTERM, before it is killed."""


def keep_everything(run: "Run") -> None:
    """Default of ``Run.clean_up``."""


@dataclass(frozen=True)
class Run:
    """One experiment and its result.

    Args:
        name: name in the progress display and in messages.
        command: the program and its arguments; empty if the run is ``read_result`` alone.
        result: JSON file that marks the run as done, in a directory whose name has the run's key, see
            :func:`~mae_lm_fairseq.training.keys.run_key`; its log, with the suffix ``.log``, is beside it.
        read_result: returns the content of the result file, JSON-serialisable; called in a child process when the
            command has ended, so it must be picklable: a function of a module, or a partial of one.
        updates: numbers of updates of fairseq-train before and after the run, for the progress display.
        clean_up: is called in the child process once the result file is written, and again for a run that was done
            before, because the process may have been killed in between; removes what only resuming needs.
        after: runs that must be finished before this one is started.
        weight: expected duration relative to the other runs, for the estimated time left.
    """

    name: str
    command: Sequence[str]
    result: Path
    read_result: Callable[["Run"], dict]
    updates: tuple[int, int] | None = None
    clean_up: Callable[["Run"], None] = keep_everything
    after: Sequence["Run"] = ()
    weight: float = 1.0

    @property
    def log(self) -> Path:
        return self.result.with_suffix(".log")

    def fraction_done(self) -> float:
        """Return the fraction of the updates in the log, in [0, 1]; 0 if their number is unknown."""
        if self.updates is None:
            return 0.0
        first, last = self.updates
        return min(1.0, max(0, last_update(self.log) - first) / (last - first))

    def progress(self) -> str:
        """Return the name with the number of the current update, if known."""
        return f"{self.name}: update {last_update(self.log):,} of {self.updates[1]:,}" if self.updates else self.name


def run_all(
    runs: Sequence[Run],
    jobs: int = 1,
    threads: int = 1,
    environments: Sequence[Mapping[str, str]] = ({},),
    finished: Callable[[Run], None] = lambda run: None,
) -> list[dict]:
    """Run everything that has no result yet, and return all results in the order of ``runs``.

    Args:
        runs: the runs; the first ones that can be started are.
        jobs: number of runs at the same time.
        threads: number of threads of each run.
        environments: environment variables for the runs at the same time; the first run gets the first ones, and so on.
        finished: called when the result of a run has been written.

    Raises:
        UserError: if a run fails. Active runs are ended first, and no others are started, unless a run fails after its
            first updates, as one that diverges does.
        Interrupted: if the program receives SIGINT, SIGTERM or SIGHUP. Active runs are ended first.
    """
    waiting = [run for run in runs if not _is_done(run)]
    if len(waiting) < len(runs):
        print(f"{len(runs) - len(waiting)} of {len(runs)} runs were done before, and are reused", flush=True)
    if not waiting:
        return [read_result(run) for run in runs]
    active, failures = [], []
    free = [environments[number % len(environments)] for number in range(jobs)]
    with signals_as_errors(), _ending(active), _Display(runs) as display:
        while waiting or active:
            while free and (run := _first_ready(waiting)):
                waiting.remove(run)
                if (process := _start(run, threads, free[0])) is not None:
                    active.append(process)
                    free.pop(0)
            if not active:
                break  # what is waiting needs runs that have failed
            time.sleep(POLL_SECONDS)
            display.show([process.run for process in active])
            for process in [*active]:
                try:
                    if not process.is_finished():
                        continue
                except UserError as failure:
                    if not process.failed_in_training():
                        raise
                    failures.append(str(failure))
                    process.end(signal.SIGKILL)  # what it has started
                    print(f"{failure}; other runs go on", flush=True)
                active.remove(process)
                free.append(process.environment)
                process.log.close()
                if process.run.result.exists():
                    finished(process.run)
    if failures:
        raise UserError("; ".join(failures))
    return [read_result(run) for run in runs]


def _first_ready(waiting: Sequence[Run]) -> Run | None:
    return next((run for run in waiting if all(read_result(before) is not None for before in run.after)), None)


def read_result(run: Run) -> dict | None:
    """Return the content of the run's result file, or None if there is no valid one yet."""
    return read_record(run).get("result")


def read_record(run: Run) -> dict[str, Any]:
    """Return what the result file holds: ``name``, ``command``, ``seconds`` and ``result``.

    It is empty if there is no valid result file yet.
    """
    try:
        content = json.loads(run.result.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_done(run: Run) -> bool:
    if read_result(run) is None:
        return False
    run.clean_up(run)
    return True


def _start(run: Run, threads: int, environment: Mapping[str, str]) -> "_Active | None":
    """Start a run; return None if another runner has finished the run in the meantime."""
    run.result.parent.mkdir(parents=True, exist_ok=True)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)) | environment
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(run.log, "ab"))
        _wait_for_other_runner(run, log)
        if _is_done(run):
            return None
        run.result.unlink(missing_ok=True)
        handle, done = None, run.fraction_done()
        if run.command:
            # In a new session, so that only the runner receives Ctrl-C. It then ends the run and all that it started.
            started = {"env": os.environ | limits, "start_new_session": True}
            handle = subprocess.Popen(run.command, stdout=log, stderr=log, **started)
        stack.pop_all()
    return _Active(run, limits, environment, log, handle, done_before=done)


@dataclass
class _Active:
    """An active run, with its locked log: first its command, then the process that reads the result."""

    run: Run
    limits: Mapping[str, str]
    environment: Mapping[str, str]
    log: BinaryIO
    handle: subprocess.Popen | None
    reader: BaseProcess | None = None
    began: float = field(default_factory=time.monotonic)
    done_before: float = 0.0

    def failed_in_training(self) -> bool:
        """Return whether the command failed after its first updates."""
        return self.reader is None and self.run.fraction_done() > self.done_before

    def is_finished(self) -> bool:
        """Return whether the result is written; start the next step where one has ended.

        Raises:
            UserError: if a step failed.
        """
        if self.reader is not None:
            return self._has_succeeded(self.reader.exitcode)
        if self.handle is None or self._has_succeeded(self.handle.poll()):
            seconds = time.monotonic() - self.began
            self.reader = start_process(self.limits, _write_result, self.run, seconds)
        return False

    def _has_succeeded(self, code: int | None) -> bool:
        if code:
            run = self.run
            reason = _last_line(run.log).removeprefix("error: ")
            raise UserError(f"{run.name} failed (exit code {code}), {run.log} ends: {reason}")
        return code == 0

    def end(self, number: int) -> None:
        """Send a signal to all processes of the run."""
        for process in (self.handle, self.reader):
            with contextlib.suppress(ProcessLookupError, AttributeError):
                os.killpg(process.pid, number)

    def wait(self, deadline: float) -> None:
        """Wait until both processes have ended, at most until a time of the monotonic clock."""
        with contextlib.suppress(subprocess.TimeoutExpired, AttributeError):
            self.handle.wait(max(0.0, deadline - time.monotonic()))
        if self.reader is not None:
            self.reader.join(max(0.0, deadline - time.monotonic()))


def _write_result(run: Run, seconds: float) -> None:
    """Read the result of a run whose command took some seconds, and write its file, in a process of its own."""
    os.setsid()
    with open(run.log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    began = time.monotonic()
    with errors_end_the_program():
        result = run.read_result(run)
        content = {"name": run.name, "command": list(run.command)}
        seconds += time.monotonic() - began
        write_json(run.result, content | {"seconds": round(seconds, 1), "result": result})
        run.clean_up(run)


@contextlib.contextmanager
def _ending(active: list[_Active]) -> Iterator[None]:
    """End the runs that are in the list when the block is left, with all that they started."""
    try:
        yield
    finally:
        for run in active:
            run.end(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for run in active:
            run.wait(deadline)
            run.end(signal.SIGKILL)
            run.wait(math.inf)
            run.log.close()


class _Display:
    """Progress bar over all runs: runs done, the current update of each active run, and the estimated time left."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = runs
        self.done = self._done()
        form = "{percentage:3.0f}%|{bar:25}| {elapsed}, {remaining} left{postfix}"
        # No smoothing, because runs differ in speed and the overall average is the better estimate.
        total = sum(run.weight for run in runs)
        self.bar = progress_bar(total=total, initial=self.done, bar_format=form, smoothing=0)

    def __enter__(self) -> "_Display":
        return self

    def __exit__(self, *error) -> None:
        self.show([])
        self.bar.close()

    def show(self, running: list[Run]) -> None:
        finished = sum(run.result.exists() for run in self.runs)
        shown = [f"{finished} of {len(self.runs)} runs done", *(run.progress() for run in running)]
        self.bar.set_postfix_str("; ".join(shown), refresh=False)
        done = self._done()
        # A run that resumes goes back to its last checkpoint; the time left is estimated from there.
        self.bar.initial = min(self.bar.initial, done)
        self.bar.update(done - self.done)
        self.done = done

    def _done(self) -> float:
        return sum(run.weight * (1.0 if run.result.exists() else run.fraction_done()) for run in self.runs)


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
