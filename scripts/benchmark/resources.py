"""Measure the memory of a long run.

Trains a tiny model for ten epochs over five shards with two data workers, and records the memory of the trainer and its
workers in every epoch. Then trains mae_lm_tiny in float32 and bfloat16 on one data-bin, with the caches of compiled
primitives limited and as large as torch makes them, and records memory and processor time every 100 updates. Writes the
results as JSON.

Example:
    scripts/benchmark.py resources --json resources.json
"""

import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.utils.command_line import Options, OutputFile
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # tests/ is not installed

from tests.fault_injection.processes import children  # noqa: E402

EPOCHS, SHARDS = 10, 5
SETTINGS = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --encoder-layers 1 "
    "--decoder-layers 1 --cpu --optimizer adam --lr 1e-3 --tokens-per-sample 64 --sample-break-mode complete_doc "
    "--batch-size 16 --num-workers 2 --log-format simple --log-interval 1000"
)
UPDATES, INTERVAL = 600, 100
ONE_DATA_BIN = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --cpu --optimizer fused_adamw "
    "--lr 1e-3 --tokens-per-sample 128 --sample-break-mode complete_doc --batch-size 32 --num-workers 0 --no-save "
    f"--disable-validation --effective-rank-interval 200 --log-format simple --log-interval {INTERVAL}"
)
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables; without them, training limits both caches."""


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


def anonymous_memory(pid: int) -> int:
    """Return the bytes of a process's private memory, without mapped files, which processes share."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


def watch(directory: Path, data: str, *options: str, capacity: int | None = None) -> Iterator[tuple[int, str]]:
    """Train, and yield the process id and the log again and again until the process ends.

    ``capacity`` limits the caches of compiled primitives.
    """
    log = directory / "train.log"
    command = [sys.executable, "-m", "fairseq_cli.train", data, "--user-dir", str(ROOT / "mae_lm_fairseq"), *options]
    limits = {} if capacity is None else {"OMP_NUM_THREADS": "1", **dict.fromkeys(CACHES, str(capacity))}
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | limits)
    while process.poll() is None:
        yield process.pid, log.read_text()
        time.sleep(0.2)
    if process.returncode != 0:
        raise SystemExit(f"error: training failed: {log.read_text()[-500:]}")


def training(directory: Path, model: list[object]) -> dict:
    """Return the peak memory of the trainer and of a worker in each epoch, in bytes."""
    shards = [directory / f"shard-{number}" for number in range(SHARDS)]
    for number, shard in enumerate(shards):
        write_text(directory / f"shard-{number}.txt", 0.3, 10 + number)
        prepare(directory / f"shard-{number}.txt", directory / "valid.txt", shard, *model)
    options = [*SETTINGS, "--max-epoch", str(EPOCHS), "--no-epoch-checkpoints", "--save-dir", str(directory / "saved")]
    trainer, workers = [0] * (EPOCHS + 1), [0] * (EPOCHS + 1)
    for pid, log in watch(directory, ":".join(map(str, shards)), *options):
        epoch = min(EPOCHS, log.count("begin training epoch"))
        try:
            trainer[epoch] = max(trainer[epoch], anonymous_memory(pid))
            workers[epoch] = max([workers[epoch], *map(anonymous_memory, children(pid))])
        except (FileNotFoundError, ProcessLookupError):
            pass  # a worker has ended meanwhile
    return {"epochs": EPOCHS, "shards": SHARDS, "trainer_bytes": trainer[1:], "worker_bytes": workers[1:]}


def precisions(directory: Path, model: list[object]) -> list[dict]:
    """Return the memory in bytes and the processor time in seconds of a training process, every INTERVAL updates."""
    write_text(directory / "train.txt", 8, 3)
    prepare(directory / "train.txt", directory / "valid.txt", directory / "data-bin", *model)
    rows = []
    for autocast in ("none", "bf16"):
        for capacity in (64, 1024):
            options, seen = [*ONE_DATA_BIN, "--max-update", str(UPDATES), "--autocast", autocast], []
            for pid, log in watch(directory, str(directory / "data-bin"), *options, capacity=capacity):
                if len(re.findall(r"num_updates=\d*00[^0-9]", log)) > len(seen):
                    seen.append((anonymous_memory(pid), processor_seconds(pid)))
            memory, seconds = zip(*seen, strict=True)
            rows.append({"autocast": autocast, "capacity": capacity, "bytes": memory, "processor_seconds": seconds})
            print(f"autocast {autocast}, {capacity} primitives: {memory[-1] / 1e6:,.0f} MB, {seconds[-1]:.0f} s")
    return rows


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        json: JSON file for the results.
    """

    json: OutputFile


def main(options: BenchmarkOptions) -> None:
    """Measure, and print the growth."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        model = tokenizer(directory)
        results = training(directory, model)
        results["updates"] = {"interval": INTERVAL, "runs": precisions(directory, model)}
    write_json(options.json, provenance() | results)
    for name in ("trainer", "worker"):
        by_epoch = results[f"{name}_bytes"]
        print(f"memory of the {name}: {by_epoch[-1] / by_epoch[1] - 1:+.1%} from epoch 2 to epoch {EPOCHS}")
