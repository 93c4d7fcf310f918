#!/usr/bin/env python3
"""Measure the resources of long runs: memory over epochs and shards, and preparation of a corpus 20 times as large.

Prepares a corpus, another one of 20 times its size, and a minimal one to measure the start-up. Then trains a tiny model
for ten epochs over five shards with two data workers, and records the memory of the trainer and its workers. Times are
processor times, which other load on the machine hardly changes. Writes the results as JSON.
"""

import argparse
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mae_lm_fairseq.utils.arguments import output_file
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests/ is not installed

from tests.fault_injection.processes import children  # noqa: E402

EPOCHS, SHARDS, FACTOR = 10, 5, 20
SETTINGS = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --encoder-layers 1 "
    "--decoder-layers 1 --cpu --optimizer adam --lr 1e-3 --tokens-per-sample 64 --sample-break-mode complete_doc "
    "--batch-size 16 --num-workers 2 --log-format simple --log-interval 1000"
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


def prepare(train: Path, valid: Path, destdir: Path, *options: object) -> tuple[float, int]:
    """Return the seconds of processor time, and the peak memory of the largest process in bytes."""
    script = ROOT / "preprocess" / "pretrain" / "prepare.py"
    inputs = ["--train", train, "--valid", valid, "--destdir", destdir, "--workers", 1]
    process = subprocess.Popen([sys.executable, script, *map(str, (*inputs, *options))], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit("error: prepare.py failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def tokenizer(directory: Path) -> list[object]:
    """Write the validation text and a tokenizer for all corpora, and return it as an option."""
    write_text(directory / "valid.txt", 0.1, 1)
    write_text(directory / "first.txt", 2, 2)
    prepare(directory / "first.txt", directory / "valid.txt", directory / "first", "--vocab-size", 4000)
    return ["--sentencepiece-model", directory / "first" / "sentencepiece.bpe.model"]


def scaling(directory: Path, model: list[object], megabytes: float) -> dict:
    """Measure the preparation of a corpus, of one ``FACTOR`` times as large, and of a minimal one."""
    sizes = {"start": megabytes / 1000, "small": megabytes, "large": megabytes * FACTOR}
    for seed, (name, size) in enumerate(sizes.items()):
        write_text(directory / f"{name}.txt", size, 3 + seed)
    rounds = []
    for _ in range(3):  # interleaved, so that other load affects all of them
        rounds.append({})
        for name in sizes:
            rounds[-1][name] = prepare(directory / f"{name}.txt", directory / "valid.txt", directory / "made", *model)
            shutil.rmtree(directory / "made")
    seconds = {name: statistics.median(found[name][0] for found in rounds) for name in sizes}
    memory = {name: max(found[name][1] for found in rounds) for name in sizes}
    return {"megabytes": megabytes, "factor": FACTOR, "cpu_seconds": seconds, "peak_bytes": memory}


def anonymous_memory(pid: int) -> int:
    """Return the bytes of a process's private memory, without mapped files, which processes share."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


def training(directory: Path, model: list[object]) -> dict:
    """Return the peak memory of the trainer and of a worker in each epoch, in bytes."""
    shards = [directory / f"shard-{number}" for number in range(SHARDS)]
    for number, shard in enumerate(shards):
        write_text(directory / f"shard-{number}.txt", 0.3, 10 + number)
        prepare(directory / f"shard-{number}.txt", directory / "valid.txt", shard, *model)
    log = directory / "train.log"
    command = [sys.executable, "-m", "fairseq_cli.train", ":".join(map(str, shards)), *SETTINGS]
    command += ["--user-dir", str(ROOT / "mae_lm_fairseq"), "--max-epoch", str(EPOCHS), "--no-epoch-checkpoints"]
    with open(log, "w") as output:
        process = subprocess.Popen([*command, "--save-dir", str(directory / "saved")], stdout=output, stderr=output)
    trainer, workers = [0] * (EPOCHS + 1), [0] * (EPOCHS + 1)
    while process.poll() is None:
        epoch = min(EPOCHS, log.read_text().count("begin training epoch"))
        try:
            trainer[epoch] = max(trainer[epoch], anonymous_memory(process.pid))
            workers[epoch] = max([workers[epoch], *map(anonymous_memory, children(process.pid))])
        except (FileNotFoundError, ProcessLookupError):
            pass  # a worker has ended meanwhile
        time.sleep(0.2)
    if process.returncode != 0:
        raise SystemExit(f"error: training failed: {log.read_text()[-500:]}")
    return {"epochs": EPOCHS, "shards": SHARDS, "trainer_bytes": trainer[1:], "worker_bytes": workers[1:]}


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=output_file, metavar="FILE", help="JSON file for the results")
    parser.add_argument("--megabytes", type=float, default=10, help="megabytes of the smaller corpus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        model = tokenizer(directory)
        results = {
            "preparation": scaling(directory, model, options.megabytes),
            "training": training(directory, model),
        }
    write_json(options.json, results)
    seconds, memory = results["preparation"]["cpu_seconds"], results["preparation"]["peak_bytes"]
    start, small, large = (seconds[name] for name in ("start", "small", "large"))
    times = (large - start) / (small - start)
    print(f"preparing {FACTOR} times the text took {times:.1f} times the time, beyond {start:.1f} s of starting,")
    print(f"and {memory['large'] / memory['small']:.2f} times the memory")
    for name in ("trainer", "worker"):
        by_epoch = results["training"][f"{name}_bytes"]
        print(f"memory of the {name}: {by_epoch[-1] / by_epoch[1] - 1:+.1%} from epoch 2 to epoch {EPOCHS}")


if __name__ == "__main__":
    with errors_end_the_program():
        main()
