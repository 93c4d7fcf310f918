"""The measurements of fairseq-train for :mod:`benchmark.gpu`, on invented text: each returns values for JSON."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmark.batches import write_text
from benchmark.gpu_graphs import environment
from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.training.training_log import read_records

PRESETS = {"MAE-LM": "mae_lm", "RoBERTa": "mae_lm_roberta"}
COMMON = {
    "user-dir": PACKAGE,
    "task": "masked_autoencoder_lm",
    "criterion": "masked_autoencoder_lm",
    "sample-break-mode": "complete_doc",
    "optimizer": "fused_adamw",
    "adam-betas": "(0.9,0.98)",
    "lr": 1e-4,
    "lr-scheduler": "polynomial_decay",
    "warmup-updates": 10,
    "total-num-update": 10_000,
    "clip-norm": 2.0,
    "log-format": "json",
}
FLAGS = ["--no-epoch-checkpoints", "--disable-validation"]
WITHOUT_DROPOUT = ["--dropout", "0", "--attention-dropout", "0"]
KILLED_AT, ENDS_AT = 4, 8
"""Updates after which a training is killed, and after which it ends once resumed."""
NOT_ROUNDED = 0.005
"""Bits by which two losses may differ: fairseq logs three decimals."""


@dataclass(frozen=True)
class Scale:
    """Sizes on a GPU, and of the rehearsal on a CPU."""

    size: str
    vocabulary: int
    tokens_per_sample: int
    rows: int
    warm_up: int
    """Updates that are not timed: most buckets are captured there."""
    updates: int
    interval: int
    """Updates between two logs."""
    device: tuple[str, ...]
    small: tuple[str, ...]
    """Options of a network for what is not timed."""


SCALES = {
    # Sequences of this invented text have 367 tokens on average, as the recorded documents have.
    "cuda": Scale(
        "base",
        32_000,
        480,
        64,
        60,
        140,
        20,
        ("--autocast", "bf16", "--num-workers", "2"),
        ("--encoder-layers", "2", "--decoder-layers", "2"),
    ),
    "cpu": Scale("tiny", 100, 32, 8, 4, 8, 2, ("--cpu", "--num-workers", "0"), ()),
}


class Trainings:
    """Runs of fairseq-train on invented text in a directory."""

    def __init__(self, device: str, directory: str, model: str, options: list[str]):
        self.device, self.scale, self.directory = device, SCALES[device], Path(directory)
        self.data = self.directory / "data-bin"
        self.data.mkdir()
        sequences = 2 * self.scale.rows * self.scale.updates
        write_text(self.data, self.scale.vocabulary, sequences * self.scale.tokens_per_sample)
        sizes = {
            "arch": f"{PRESETS[model]}_{self.scale.size}",
            "tokens-per-sample": self.scale.tokens_per_sample,
            "batch-size": self.scale.rows,
        }
        words = [word for name, value in (COMMON | sizes).items() for word in (f"--{name}", str(value))]
        self.options = [*words, *FLAGS, *self.scale.device, *options]

    def start(self, name: str, *options: str, **variables: str) -> subprocess.Popen:
        """Start a training that logs to ``name.log`` and saves to ``name``."""
        command = [sys.executable, "-m", "fairseq_cli.train", str(self.data), *self.options]
        command += ["--save-dir", str(self.directory / name), *options]
        with open(self.log(name), "w") as log:
            return subprocess.Popen(command, env=environment() | variables, stdout=log, stderr=subprocess.STDOUT)

    def run(self, name: str, *options: str) -> float:
        """Train; return the seconds until the first log of updates."""
        began = time.monotonic()
        process = self.start(name, *options)
        self.wait_for(process, name, lambda: self.records(name))
        seconds = time.monotonic() - began
        self.end(process, name)
        return seconds

    def wait_for(self, process: subprocess.Popen, name: str, condition: Callable[[], object]) -> None:
        """Wait until a condition holds.

        Raises:
            RuntimeError: if the training has ended before, with the end of its log.
        """
        while not condition():
            if process.poll() is not None and not condition():
                raise RuntimeError(self.log(name).read_text()[-400:])
            time.sleep(0.02)

    def end(self, process: subprocess.Popen, name: str) -> None:
        """Wait for the end of a training.

        Raises:
            RuntimeError: if it fails, with the end of its log.
        """
        if process.wait():
            raise RuntimeError(self.log(name).read_text()[-400:])

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def records(self, name: str) -> list[dict]:
        """Return what a training has logged, by update."""
        return list(read_records(self.log(name), "train_inner").values())

    def checkpoint(self, name: str) -> dict:
        path = self.directory / name / "checkpoint_last.pt"
        return torch.load(path, map_location="cpu", weights_only=False)


def trained(device: str, model: str, variant: str) -> dict:
    """Time the updates of fairseq-train: the median of intervals after the warm-up, in milliseconds.

    ``variant`` is eager, graphs or compiled graphs.
    """
    with tempfile.TemporaryDirectory() as directory:
        trainings = Trainings(device, directory, model, _options(variant))
        scale = trainings.scale
        words = ["--no-save", "--max-update", str(scale.updates), "--log-interval", str(scale.interval)]
        trainings.run("timed", *words)
        records = trainings.records("timed")
    records = [record for record in records if int(record["num_updates"]) > scale.warm_up]
    intervals = [1e3 * float(record["wpb"]) / float(record["wps"]) for record in records]
    tokens = median(float(record["wpb"]) for record in records)
    return {"update_ms": median(intervals), "intervals_ms": intervals, "tokens": tokens}


def resumed(device: str, model: str, variant: str) -> dict:
    """Kill a training with graphs, resume it, and compare with one that was not killed.

    ``second_start_s`` is the time until the first update of the training that was not killed, with the caches of the
    one that was.
    """
    saving = ["--save-interval-updates", str(KILLED_AT)]
    ending = ["--max-update", str(ENDS_AT)]
    with tempfile.TemporaryDirectory() as directory:
        trainings = Trainings(device, directory, model, [*_options(variant), "--log-interval", "1"])
        saved = trainings.directory / "killed" / f"checkpoint_1_{KILLED_AT}.pt"
        killed = trainings.start("killed", *saving, "--max-update", "1000000")
        trainings.wait_for(killed, "killed", saved.exists)
        killed.kill()
        killed.wait()
        second_start = trainings.run("once", *saving, *ending)
        (trainings.directory / "resumed").mkdir()
        shutil.move(saved, trainings.directory / "resumed" / "checkpoint_last.pt")
        trainings.run("resumed", *saving, *ending)
        states = [trainings.checkpoint(name) for name in ("once", "resumed")]
    return {"second_start_s": second_start, **_differences(*states)}


def ranks(device: str, model: str) -> dict:
    """Compare the losses of two ranks on one device with those of one that accumulates two batches."""
    options = [*_options("graphs"), "--log-interval", "1", "--no-save", "--max-update", str(ENDS_AT)]
    options += [*SCALES[device].small, *WITHOUT_DROPOUT]
    with tempfile.TemporaryDirectory() as directory:
        trainings = Trainings(device, directory, model, options)
        trainings.run("one", "--update-freq", "2")
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        words = ["--ddp-backend", "legacy_ddp", "--distributed-backend", "gloo"]
        names = ["rank-0", "rank-1"]
        processes = [trainings.start(name, *words, **job, RANK=name[-1]) for name in names]
        for process, name in zip(processes, names, strict=True):
            trainings.end(process, name)
        losses = [[float(record["loss"]) for record in trainings.records(name)] for name in ("one", "rank-0")]
    differences = [abs(ours - theirs) for ours, theirs in zip(*losses, strict=True)]
    return {"difference": max(differences), "tolerance": NOT_ROUNDED, "updates": len(differences)}


def _options(variant: str) -> list[str]:
    options = ["--cuda-graphs"] if "graphs" in variant else []
    return [*options, "--compile"] if "compiled" in variant else options


def _differences(once: dict, resumed: dict) -> dict[str, int]:
    """Return how many tensors of two states differ in a bit, of weights and of the optimizer."""
    unequal = [not torch.equal(weight, resumed["model"][name]) for name, weight in once["model"].items()]
    others = resumed["last_optimizer_state"]["state"]
    for number, state in once["last_optimizer_state"]["state"].items():
        for name, value in state.items():
            other = others[number][name]
            unequal.append(not torch.equal(torch.as_tensor(value), torch.as_tensor(other)))
    return {"unequal": sum(unequal), "tensors": len(unequal)}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


ROWS = {function.__name__: function for function in (trained, resumed, ranks)}
