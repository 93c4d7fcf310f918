"""Stages of the day-one programme: order, time limits, and the processes that run them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark.day_one.record import ENDED, RUNNING, Record, read_record

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_SECONDS = 5
"""Time that a stage has to end after SIGTERM, before it is killed."""


@dataclass(frozen=True)
class Stage:
    """A stage: the module in this package that measures, and the time limit in minutes."""

    module: str
    minutes: float


STAGES = {
    "environment": Stage("environment", 3),
    "tests": Stage("agreement", 6),
    "pretrain": Stage("pretraining", 8),
    "peers": Stage("peers", 9),
    "resume": Stage("resuming", 4),
    "curves": Stage("curves", 6),
    "kernels": Stage("kernels", 4),
}


def record_path(out: Path, name: str) -> Path:
    """Return the JSON file of a stage."""
    return out / f"{list(STAGES).index(name)}-{name}.json"


def run_stage(name: str, out: Path, device: str) -> str | None:
    """Run a stage in a process group of its own, and return what went wrong.

    The JSON file exists afterwards in any case. What the stage started ends with it.
    """
    path, stage = record_path(out, name), STAGES[name]
    path.unlink(missing_ok=True)
    print(f"{name}: at most {stage.minutes:g} minutes; results in {path}", flush=True)
    began = time.monotonic()
    problem = _run(
        [sys.executable, "-m", "benchmark.day_one.worker", name, str(path), device], 60 * stage.minutes, device
    )
    record = read_record(path) or Record(path, name, device).content
    if problem is None and record["failed"]:
        problem = f"{record['failed']} of {record['planned']} measurements failed"
    if record["state"] == RUNNING:
        Record.of(path, record).end(problem or ENDED)
    print(f"{name}: {problem or 'done'} after {time.monotonic() - began:.0f} s", flush=True)
    return problem


def _run(command: list[str], seconds: float, device: str) -> str | None:
    process = subprocess.Popen(command, env=environment(rehearsal=device == "cpu"), start_new_session=True)
    with _group_ends_with(process):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped at its limit of {seconds / 60:g} minutes"
    return None if code == 0 else f"ended with code {code}"


@contextlib.contextmanager
def _group_ends_with(process: subprocess.Popen) -> Iterator[None]:
    """End the process group that a process leads when the block ends."""
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)


def environment(rehearsal: bool = False) -> dict[str, str]:
    """Return the environment of processes that import this package and scripts/ from the checkout, with one GPU.

    Args:
        rehearsal: compute on a CPU with one thread, since tiny models on a busy CPU wait for each other's threads, and
            interpret the kernels of triton, which reads this when it is imported.
    """
    paths = [str(ROOT), str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    on_cpu = {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"} if rehearsal else {}
    return {
        "CUDA_VISIBLE_DEVICES": "0",
        **on_cpu,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }
