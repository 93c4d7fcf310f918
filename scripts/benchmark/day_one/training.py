"""Trainings in processes of their own, by the users' command, and what their logs say."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmark.day_one.scale import FP32, Scale
from benchmark.day_one.stages import environment
from mae_lm_fairseq.training.training_log import last_update, read_records

GIB = 1 << 30


@dataclass(frozen=True)
class Training:
    """A training that has ended, or was killed."""

    log: Path
    peak_resident: int
    """Largest resident memory of the process on the host, in bytes."""

    def values(self, name: str, skipped: int = 0) -> list[float]:
        """Return a value of every update after the first ``skipped`` ones."""
        records = read_records(self.log, "train_inner")
        return [float(record[name]) for record in records.values() if name in record][skipped:]

    def tokens_per_second(self, skipped: int) -> float:
        """Return the median speed of the updates after the first ``skipped`` ones."""
        return median(self.values("wps", skipped))

    def peak_gpu_memory(self) -> float | None:
        """Return the largest memory of tensors in bytes, which fairseq logs to 0.1 GiB; None without a GPU."""
        free = self.values("gb_free")
        return torch.cuda.get_device_properties(0).total_memory - min(free) * GIB if free else None


def flags(values: dict[str, object]) -> tuple[str, ...]:
    """Return options of fairseq-train as words."""
    return tuple(str(word) for name, value in values.items() for word in (f"--{name}", value))


def words(scale: Scale, preset: str, data: Path, save: Path, options: tuple[str, ...]) -> list[str]:
    """Return the arguments of ``mae-lm pretrain``."""
    common = ["--log-format", "json", "--log-interval", "1", "--disable-validation"]
    device = [] if scale.on_gpu else ["--cpu", "--num-workers", "0"]
    return [preset, str(data), str(save), *common, *device, *(option for option in options if option != FP32)]


def command(scale: Scale, preset: str, data: Path, save: Path, options: tuple[str, ...]) -> list[str]:
    """Return the command of a training: ``mae-lm pretrain``, or fairseq-train with its arguments for float32."""
    if FP32 not in options:
        return [sys.executable, "-m", "mae_lm_fairseq", "pretrain", *words(scale, preset, data, save, options)]
    return [sys.executable, "-m", "fairseq_cli.train", *fp32_arguments(scale, preset, data, save, options)]


def fp32_arguments(scale: Scale, preset: str, data: Path, save: Path, options: tuple[str, ...]) -> list[str]:
    """Return the arguments of fairseq-train without half precision, unless an option chooses it."""
    from mae_lm_fairseq.training.pretrain import configure

    _, _, _, *flags = words(scale, preset, data, save, options)
    return [word for word in configure(preset, str(data), str(save), flags)[0] if word != "--fp16"]


def train(
    scale: Scale,
    preset: str,
    data: Path,
    work: Path,
    options: tuple[str, ...],
    until: Callable[[Path], bool] = lambda log: False,
) -> Training:
    """Train, and return what was measured. Checkpoints are in ``work / "checkpoints"``.

    Args:
        work: directory for the log and checkpoints; a second training there resumes the first one.
        options: flags of fairseq-train, or :data:`FP32`.
        until: the training is killed as soon as this function of the log returns True.

    Raises:
        RuntimeError: if the training ends with an error; the message has the last line of the log.
    """
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"train-{len(list(work.glob('train-*.log')))}.log"
    line = command(scale, preset, data, work / "checkpoints", options)
    with open(log, "w") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, env=environment())
    peak, was_killed = 0, False
    while process.poll() is None:
        peak = max(peak, _resident(process.pid))
        if not was_killed and until(log):
            process.kill()
            was_killed = True
        time.sleep(0.05)
    if process.returncode and not was_killed:
        raise RuntimeError(f"training ended with code {process.returncode}: {_last_line(log)}")
    return Training(log, peak)


def has_reached(update: int) -> Callable[[Path], bool]:
    """Return the condition that a log has reached an update."""
    return lambda log: last_update(log) >= update


def _resident(pid: int) -> int:
    """Return the largest resident memory of a process so far, in bytes; 0 if it has just ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        found = None
    return int(found[1]) << 10 if found else 0


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["(nothing)"]
    return os.linesep.join(lines[-1:])[:300]
