"""Experiment runner: executes a table of runs, each of which produces one result file.

A run is a command, a function that reads its result, or both, in a process of its own, so that no run waits for another
one's evaluation. A run whose result file exists is skipped. An interrupted run is started again and resumes from
whatever its command keeps (``fairseq-train``: ``checkpoint_last.pt``). Result files are written atomically, as soon as
a run ends.
"""

import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

from mae_lm_fairseq.training.training_log import last_update, phase
from mae_lm_fairseq.training.user_directory import UserDirectory, check_unchanged, import_user_directory, user_directory
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import read_record, write_record
from mae_lm_fairseq.utils.output import progress_bar
from mae_lm_fairseq.utils.signals import ENDING, REPEATED_WITHIN, handled_by, signals_as_errors
from mae_lm_fairseq.utils.workers import start_process
from mae_lm_fairseq.utils.writing import append_to_file, check_no_link

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 600
"""Time that a process has to end after SIGTERM, before it is killed; a training saves its last update first."""


def keep_everything(run: "Run") -> None:
    """Default of ``Run.clean_up``."""


@dataclass(frozen=True)
class Run:
    """One experiment and its result.

    Args:
        command: the program and its arguments; empty if the run is ``read_result`` alone.
        result: JSON file that marks the run as done, in a directory whose name has the run's key, see
            :func:`~mae_lm_fairseq.training.keys.run_key`; its log, with the suffix ``.log``, is beside it.
        read_result: returns the content of the result file, JSON-serialisable, when the command has ended; called in
            the run's process, so it must be picklable: a function of a module, or a partial of one.
        updates: number of updates of fairseq-train at the end of the run, for the progress display.
        clean_up: is called in the run's process once the result file is written, and again for a run that was done
            before, because the process may have been killed in between; removes what only resuming needs.
        needs: file that must exist before this run is started, which another run makes.
        weight: expected duration relative to the other runs, for the estimated time left.
        evaluation: expected fraction of it that :attr:`read_result` takes.
    """

    name: str
    command: Sequence[str]
    result: Path
    read_result: Callable[["Run"], dict]
    updates: int | None = None
    clean_up: Callable[["Run"], None] = keep_everything
    needs: Path | None = None
    weight: float = 1.0
    evaluation: float = 0.1

    @property
    def log(self) -> Path:
        return self.result.with_suffix(".log")

    def fraction_done(self) -> float:
        """Return the fraction of the updates in the log, in [0, 1]; 0 if their number is unknown."""
        if self.updates is None:
            return 0.0
        return min(1.0, last_update(self.log) / self.updates)

    def progress(self) -> str:
        """Return the current update, if known, and the phase."""
        current = phase(self.log) if self.command else "evaluating"
        if self.updates is None:
            return current
        return f"update {last_update(self.log):,} of {self.updates:,}, {current}"


def run_all(
    runs: Sequence[Run],
    jobs: int = 1,
    threads: int = 1,
    environments: Sequence[Mapping[str, str]] = ({},),
    finished: Callable[[Run], None] = lambda run: None,
) -> list[dict]:
    """Run everything that has no result yet, and return all results in the order of ``runs``.

    Args:
        environments: environment variables for the runs at the same time; the first run gets the first ones, and so on.
        finished: called when the result of a run has been written.

    Raises:
        UserError: if a run fails. Active runs are ended first, and no others are started, unless a run fails after its
            first updates, as one that diverges does, or reads what another one has made.
        Interrupted: if the program receives SIGINT, SIGTERM, SIGHUP or SIGUSR1. Active runs are ended first: those that
            train save their last update, unless another signal follows.
    """
    waiting = [run for run in runs if not _is_done(run)]
    done_before = len(runs) - len(waiting)
    if done_before:
        print(f"{done_before} of {len(runs)} runs were done before, and are reused", flush=True)
    active, failures = [], []
    free = list(islice(cycle(environments), jobs))
    with signals_as_errors(), _ending(active), _progress(runs) as show:
        while waiting or active:
            while free and (run := _first_ready(waiting)):
                waiting.remove(run)
                active.append(_Active.start(run, threads, free.pop(0)))
            if not active:
                break  # what is waiting needs what failed runs would have made
            time.sleep(POLL_SECONDS)
            show([entry.run for entry in active])
            ended = [entry for entry in active if not entry.process.is_alive()]
            for entry in ended:
                active.remove(entry)
                free.append(entry.environment)
                if failure := entry.failure():
                    entry.end(signal.SIGKILL)  # what it has started
                    if entry.run.needs is None and entry.run.fraction_done() <= entry.done_before:
                        raise UserError(failure)
                    failures.append(failure)
                    print(f"{failure}; other runs go on", flush=True)
                else:
                    finished(entry.run)
    if failures:
        raise UserError("; ".join(failures))
    for run in waiting:
        raise UserError(f"{run.name} needs {run.needs}, which does not exist, and no run makes it")
    return [read_result(run) for run in runs]


def read_result(run: Run) -> dict[str, Any]:
    """Return the content of a run's result file.

    Raises:
        UserError: if there is none, or it is damaged.
    """
    return read_record(run.result, lambda content: content["result"])


def _first_ready(waiting: Sequence[Run]) -> Run | None:
    """Return the run to start next. One without a command comes first: it reads what is made, so results come early."""
    ready = [run for run in waiting if run.needs is None or run.needs.exists()]
    return min(ready, key=lambda run: bool(run.command), default=None)


def _is_done(run: Run) -> bool:
    is_done = run.result.exists()
    if is_done:
        run.clean_up(run)
    return is_done


@dataclass(frozen=True)
class _Active:
    """An active run: its process, its own environment variables, and the fraction that was done before."""

    run: Run
    process: BaseProcess
    environment: Mapping[str, str]
    done_before: float

    @classmethod
    def start(cls, run: Run, threads: int, environment: Mapping[str, str]) -> "_Active":
        directory = run.result.parent
        directory.mkdir(parents=True, exist_ok=True)
        for path in (directory, *directory.iterdir()):
            if path.is_dir():  # a training replaces and removes checkpoints, which may be another one's behind a link
                check_no_link(path, below=directory.parent)
        append_to_file(run.log).close()  # an error of the run's process would be looked for in the log
        done_before = run.fraction_done()
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        limits["PYTHONSAFEPATH"] = "1"  # what is in the working directory hides no module
        check_unchanged()
        pickled = pickle.dumps(run)
        process = start_process(limits | environment, _execute_with_code, user_directory(), pickled)
        return cls(run, process, environment, done_before)

    def failure(self) -> str | None:
        """Return the error message of a process that has ended, if it failed."""
        code = self.process.exitcode
        if not code:
            return None
        lines = self.run.log.read_text(encoding="utf-8", errors="replace").rstrip().split("\n")
        reason = lines[-1].strip().removeprefix("error: ") or "(nothing)"
        return f"{self.run.name} failed (exit code {code}), {self.run.log} ends: {reason}"

    def end(self, number: int) -> None:
        """Send a signal to all processes of the run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
            return
        if self.process.is_alive():  # so new that it has no group of its own
            os.kill(self.process.pid, number)


def _execute_with_code(directory: UserDirectory | None, pickled: bytes) -> None:
    """Import the directory of the user, of which the run may have objects, and execute the run."""
    if directory is not None:
        with errors_end_the_program():
            import_user_directory(directory.path)
    _execute(pickle.loads(pickled))


def _execute(run: Run) -> None:
    """Run the command, read its result and write the file, in a process and session of its own.

    So only the runner receives Ctrl-C. It then ends the run and all that it started.
    """
    os.setsid()
    with errors_end_the_program(), append_to_file(run.log) as log:
        _wait_for_other_runner(run, log)
        if _is_done(run):
            return
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        began = time.monotonic()
        if run.command and (code := _call(run.command)):
            raise SystemExit(code if code > 0 else 128 - code)  # as shells describe the end by a signal
        result = run.read_result(run)
        content = {"name": run.name, "command": list(run.command), "result": result}
        content["seconds"] = round(time.monotonic() - began, 1)
        write_record(run.result, content)
        run.clean_up(run)


def _call(command: Sequence[str]) -> int:
    """Run a command and return its exit code. A signal asks the command to end, and this process waits for its end."""
    started, received = [], []

    def pass_on(number: int, frame: object) -> None:
        received.append(number)
        for process in started:
            process.terminate()

    with handled_by(pass_on, *ENDING):
        started.append(subprocess.Popen(command))
        if received:  # before there was a process
            started[0].terminate()
        return started[0].wait()


@contextlib.contextmanager
def _ending(active: list[_Active]) -> Iterator[None]:
    """End the runs that are in the list when the block is left, with all that they started.

    They have time to save what they have done, until a further signal.
    """
    try:
        yield
    finally:
        began = time.monotonic()

        def kill(number: int, frame: object) -> None:
            if time.monotonic() - began > REPEATED_WITHIN:
                for entry in active:
                    entry.end(signal.SIGKILL)

        with handled_by(kill, *ENDING):
            trainings = ", ".join(entry.run.name for entry in active if entry.run.command)
            if trainings:
                print(f"{trainings}: waiting for the end; another signal kills", file=sys.stderr, flush=True)
            for entry in active:
                entry.end(signal.SIGTERM)
            for entry in active:
                patience = began + PATIENCE_SECONDS - time.monotonic()
                entry.process.join(max(0.0, patience))
                entry.end(signal.SIGKILL)
                entry.process.join()


@contextlib.contextmanager
def _progress(runs: Sequence[Run]) -> Iterator[Callable[[Sequence[Run]], None]]:
    """Show what is done, update and phase of each active run, and the estimated time left.

    Yields the function that updates the progress bar, given the active runs.
    """

    def done() -> float:
        total = 0.0
        for run in runs:
            fraction = 1.0 if run.result.exists() else run.fraction_done() * (1 - run.evaluation)
            total += run.weight * fraction
        return total

    def show(active: Sequence[Run]) -> None:
        number_done = sum(run.result.exists() for run in runs)
        current = [f"{run.name}: {run.progress()}" for run in active]
        bar.set_postfix_str("; ".join([f"{number_done} of {len(runs)} runs done", *current]), refresh=False)
        weight = done()
        # A run that resumes goes back to its last checkpoint; the time left is estimated from there.
        bar.initial = min(bar.initial, weight)
        bar.update(weight - bar.n)

    # No smoothing, because runs differ in speed and the overall average is the better estimate.
    form = "{percentage:3.0f}%|{bar:25}| {elapsed}, {remaining} left{postfix}"
    total = sum(run.weight for run in runs)
    with progress_bar(total=total, initial=done(), bar_format=form, smoothing=0) as bar:
        try:
            yield show
        finally:
            show([])


def _wait_for_other_runner(run: Run, log: BinaryIO) -> None:
    """Wait for another runner of this run, or for a process that outlived a killed one, and lock the log.

    Two processes would write to the same checkpoints. Every process of a run holds the lock, which is released when the
    last one has ended. File systems without locks are not checked.
    """
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{run.name}: still running, started by another runner; waiting for its end", flush=True)
        fcntl.flock(log, fcntl.LOCK_EX)
    except OSError:
        pass
