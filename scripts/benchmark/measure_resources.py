#!/usr/bin/env python3
"""Measure the memory of long trainings, started as users start them.

Trains mae_lm_roberta_tiny and mae_lm_tiny by mae-lm pretrain, in float32 and with --autocast bf16, and records private
memory and processor time every 100 updates. For the first 600 updates, another training takes turns with each of them;
its caches of compiled primitives are as large as torch makes them, which shows what their limits cost. Then trains a
smaller model for ten epochs over five shards with two data workers, and records the memory of the trainer and its
workers. The file is written after every record. bfloat16 is left out where the CPU has no instructions for it.

The trainings inherit the environment: OMP_NUM_THREADS limits their threads, if it is exported.

Example:
    scripts/benchmark/measure_resources.py --json resources.json
"""

import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mae_lm_fairseq.utils.allocator import CAPACITIES
from mae_lm_fairseq.utils.command_line import Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.signals import handled_by
from mae_lm_fairseq.utils.versions import provenance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # tests/ is not installed

from tests.fault_injection.processes import children, private_memory  # noqa: E402

PRESETS = ("mae_lm_roberta_tiny", "mae_lm_tiny")
PRECISIONS = {"fp32": [], "bf16": ["--autocast", "bf16"]}
UPDATES, COMPARED, INTERVAL = 2000, 600, 100
WARM = 300
"""Number of updates after which memory should not grow."""
UNLIMITED = 1024
"""Capacity of the caches of compiled primitives without our limits."""
EPOCHS, SHARDS = 10, 5
OVER_SHARDS = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --encoder-layers 1 "
    "--decoder-layers 1 --cpu --optimizer adam --lr 1e-3 --tokens-per-sample 64 --sample-break-mode complete_doc "
    f"--batch-size 16 --num-workers 2 --log-format simple --log-interval 1000 --no-epoch-checkpoints "
    f"--max-epoch {EPOCHS}"
)


def write_text(path: Path, megabytes: float, seed: int) -> None:
    """Write random text whose words have Zipfian frequencies; the words are the same for every seed."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 9))) for _ in range(20_000)]
    generator.seed(seed)
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    lines = [" ".join(generator.choices(words, weights, k=12)) for _ in range(20_000)]
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            file.write("\n".join(generator.choices(lines, k=20)) + "\n\n")


def prepare(train: Path, valid: Path, destdir: Path, *options: object) -> None:
    """Make a data-bin."""
    script = ROOT / "preprocess" / "pretrain" / "prepare.py"
    inputs = ["--train", train, "--valid", valid, "--destdir", destdir, "--workers", 1]
    subprocess.run([sys.executable, script, *map(str, (*inputs, *options))], stderr=subprocess.DEVNULL, check=True)


def tokenizer(directory: Path) -> list[object]:
    """Write the validation text and a tokenizer for all corpora, and return it as an option."""
    write_text(directory / "valid.txt", 0.1, 1)
    write_text(directory / "first.txt", 2, 2)
    prepare(directory / "first.txt", directory / "valid.txt", directory / "first", "--vocab-size", 4000)
    return ["--tokenizer", directory / "first" / "sentencepiece.bpe.model"]


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Training:
    """A training process that is watched from outside.

    Args:
        log: file for its output.
        environment: environment variables beside those of this process.

    Attributes:
        updates, bytes, seconds: for each record, the number of updates, the largest private memory since the record
            before, and the processor time.
    """

    def __init__(self, command: Sequence[object], log: Path, environment: dict[str, str] | None = None):
        self.log = log
        self.updates, self.bytes, self.seconds = [], [], []
        with open(log, "w") as output:
            words, variables = list(map(str, command)), os.environ | (environment or {})
            self.process = subprocess.Popen(words, stdout=output, stderr=output, env=variables)

    def advance(self) -> None:
        """Let the process run until it logs the next updates, record them, and stop the process again.

        Raises:
            UserError: if the process ends instead.
        """
        self.process.send_signal(signal.SIGCONT)
        largest = 0
        while self.process.poll() is None:
            largest = max(largest, private_memory(self.process.pid))
            logged = re.findall(r"train_inner .*num_updates=(\d+),", self.log.read_text())
            if len(logged) > len(self.updates):
                self.updates.append(int(logged[-1]))
                self.bytes.append(largest)
                self.seconds.append(processor_seconds(self.process.pid))
                self.process.send_signal(signal.SIGSTOP)
                return
            time.sleep(0.2)
        raise UserError(f"training ended: {self.log.read_text()[-500:]}")

    def kill(self) -> None:
        """End the process; its data workers end with it."""
        self.process.kill()
        self.process.wait()


def pretraining(directory: Path, preset: str, options: Sequence[str], capacity: int | None = None) -> Training:
    """Start ``mae-lm pretrain`` on the data-bin of the directory; ``capacity`` is that of the caches."""
    saved = Path(tempfile.mkdtemp(dir=directory))
    shape = ["--batch-size", 32, "--tokens-per-sample", 128, "--max-update", UPDATES, "--log-interval", INTERVAL]
    command = [sys.executable, "-m", "mae_lm_fairseq", "pretrain", preset, directory / "data-bin", saved]
    limits = {} if capacity is None else dict.fromkeys(CAPACITIES, str(capacity))
    return Training([*command, *shape, "--cpu", *options], saved / "train.log", limits)


def measure(directory: Path, preset: str, precision: str, record: Callable[[dict], None]) -> None:
    """Measure a preset in one precision; ``record`` gets the measurement again whenever it has grown."""
    row: dict = {"preset": preset, "precision": precision}
    ours, unlimited = (
        pretraining(directory, preset, PRECISIONS[precision], capacity) for capacity in (None, UNLIMITED)
    )
    try:
        while len(ours.updates) < UPDATES // INTERVAL:
            ours.advance()
            if len(unlimited.updates) < COMPARED // INTERVAL:
                unlimited.advance()
            else:
                unlimited.kill()
            for name, training in (("ours", ours), ("unlimited", unlimited)):
                row[name] = {"updates": training.updates, "bytes": training.bytes, "seconds": training.seconds}
            record(row | figures(ours, unlimited))
    finally:
        ours.kill()
        unlimited.kill()


def figures(ours: Training, unlimited: Training) -> dict[str, float]:
    """Return peak, growth after the first updates, and what the limits cost, as far as they have been measured."""
    found = {"peak_bytes": max(ours.bytes)}
    warm = [size for updates, size in zip(ours.updates, ours.bytes, strict=True) if updates >= WARM]
    if len(warm) > 1:
        found["growth"] = max(warm) / warm[0] - 1
    turns = len(unlimited.seconds)
    if turns > 1:  # the first turn includes the start of the program
        spent = [training.seconds[turns - 1] - training.seconds[0] for training in (ours, unlimited)]
        found["cost_of_limits"] = spent[0] / spent[1] - 1
    return found


def over_shards(directory: Path, model: list[object]) -> dict:
    """Return the peak memory of the trainer and of a worker in each epoch, in bytes."""
    shards = [directory / f"shard-{number}" for number in range(SHARDS)]
    for number, shard in enumerate(shards):
        write_text(directory / f"shard-{number}.txt", 0.3, 10 + number)
        prepare(directory / f"shard-{number}.txt", directory / "valid.txt", shard, *model)
    command = [sys.executable, "-m", "fairseq_cli.train", ":".join(map(str, shards)), *OVER_SHARDS]
    command += ["--user-dir", ROOT / "mae_lm_fairseq", "--save-dir", directory / "saved"]
    training = Training(command, directory / "train.log")
    trainer, workers = [0] * (EPOCHS + 1), [0] * (EPOCHS + 1)
    while training.process.poll() is None:
        epoch = min(EPOCHS, training.log.read_text().count("begin training epoch"))
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a worker has ended meanwhile
            trainer[epoch] = max(trainer[epoch], private_memory(training.process.pid))
            workers[epoch] = max([workers[epoch], *map(private_memory, children(training.process.pid))])
        time.sleep(0.2)
    if training.process.returncode != 0:
        raise UserError(f"training failed: {training.log.read_text()[-500:]}")
    return {"epochs": EPOCHS, "shards": SHARDS, "trainer_bytes": trainer[1:], "worker_bytes": workers[1:]}


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        json: JSON file for the results.
    """

    json: OutputFile


def main(options: BenchmarkOptions) -> None:
    """Measure, and print and write every record."""
    import torch

    if exported := [name for name in CAPACITIES if name in os.environ]:
        raise UserError(f"{exported[0]} is exported; unset it, to measure the limit that training sets")
    results: dict = provenance() | {"threads": os.environ.get("OMP_NUM_THREADS"), "trainings": []}
    with handled_by(signal.default_int_handler, signal.SIGTERM), tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        model = tokenizer(directory)
        write_text(directory / "train.txt", 8, 3)
        prepare(directory / "train.txt", directory / "valid.txt", directory / "data-bin", *model)
        for precision in PRECISIONS:
            if precision == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
                results["left_out"] = "bf16: this CPU has no instructions for it"
                print(results["left_out"])
                continue
            for preset in PRESETS:
                results["trainings"].append({})
                measure(directory, preset, precision, partial(record, options.json, results))
        results["over_shards"] = over_shards(directory, model)
        write_json(options.json, results)
    for name in ("trainer", "worker"):
        by_epoch = results["over_shards"][f"{name}_bytes"]
        print(f"memory of the {name}: {by_epoch[-1] / by_epoch[1] - 1:+.1%} from epoch 2 to epoch {EPOCHS}")


def record(path: Path, results: dict, row: dict) -> None:
    """Replace the last training of the results, print its figures, and write the file."""
    results["trainings"][-1] = row
    write_json(path, results)
    texts = [f"{row['preset']}, {row['precision']}, {row['ours']['updates'][-1]} updates"]
    texts.append(f"{row['ours']['bytes'][-1] / 1e6:,.0f} MB (peak {row['peak_bytes'] / 1e6:,.0f})")
    texts += [f"{name} {row[name]:+.1%}" for name in ("growth", "cost_of_limits") if name in row]
    print("; ".join(texts), flush=True)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(BenchmarkOptions, sys.argv[1:], __doc__, "measure_resources.py"))
