"""Subject processes of a benchmark, as controlled by the main process."""

import contextlib
import multiprocessing
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmark.settings import Setting, Subject

WORKER = Path(__file__).parent / "workers" / "worker.py"
PATIENCE = 240
"""Seconds that a subject may take to start, compile or run a step before it counts as hung."""
AFTER_THE_LIMIT = 20
"""Seconds that it has to end a step after the time limit."""


class SubjectFailed(Exception):
    """Failure of a subject, with the reason as a single-line message."""


class Process:
    """Process of a subject, idle between requests."""

    def __init__(self, subject: Subject, setting: Setting, directory: Path, threads: int, deadline: float):
        self.subject, self.deadline = subject, deadline
        self.connection, theirs = multiprocessing.Pipe()
        descriptor = theirs.fileno()
        self.process = subprocess.Popen(
            [sys.executable, WORKER, str(descriptor)],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        shape = {**asdict(setting), "length": subject.cases[0].length if subject.cases else 0}
        del shape["precisions"], shape["sweep_lengths"], shape["sweep_masks"], shape["left_out"]
        self.connection.send({**shape, **_build_options(subject), "directory": str(directory), "threads": threads})

    def answer(self):
        """Wait for the answer to the start or to a request.

        Raises:
            SubjectFailed: if the process reports a failure, has died, or hangs.
        """
        seconds = min(PATIENCE, max(self.deadline - time.monotonic(), 0) + AFTER_THE_LIMIT)
        try:
            if not self.connection.poll(seconds):
                raise SubjectFailed(f"no answer within {seconds:.0f} seconds")
            word, value = self.connection.recv()
        except (EOFError, ConnectionError):
            raise SubjectFailed(f"its process ended with code {self.process.wait()}") from None
        if word == "failed":
            raise SubjectFailed(value)
        return value

    def ask(self, word: str, batch: str, steps: int):
        """Have the process run steps of one kind on a batch, and return its answer; raises as :meth:`answer`."""
        with contextlib.suppress(ConnectionError):  # of a process that has died, which answer() reports
            self.connection.send((word, batch, steps))
        return self.answer()

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def _build_options(subject: Subject) -> dict:
    return {
        "kind": subject.kind,
        "precision": subject.precision,
        "options": list(subject.options),
        "optimizer": subject.optimizer,
    }
