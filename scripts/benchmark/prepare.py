"""Compare preparing data with the bare tokenizer, with Hugging Face's datasets, and with fairseq's own programs.

All use one process, the same text and the same sentencepiece model, and run alternately:

bare           only encodes the text, which is in memory, in one thread
prepare        mae-lm prepare, from files to a data-bin
datasets       datasets.map, as run_mlm.py of transformers uses it: encode lines, then group them to 512 tokens
fairseq        an encoding loop, then fairseq-preprocess

Processor times count, because other load changes them little; the times of programs include their start. Ratios are
formed within each round, and their median counts. The tokens of fairseq may differ in white space that the model does
not know (U+0085): fairseq-preprocess drops it.

Memory is the largest of any one process. With --times N it is also measured for the text repeated N times.

Example:
    scripts/benchmark.py prepare --train train.txt --valid valid.txt --tokenizer bpe.model --json prepare.json
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import sentencepiece

from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.text_files import split_lines
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.command_line import Count, File, Options, OutputFile
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance
from mae_lm_fairseq.utils.workers import WorkerPool

PREPARE = Path(__file__).parents[2] / "preprocess" / "pretrain" / "prepare.py"
BATCH_LINES = 1000
GROUP_TOKENS = 512


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        train, valid: plain text files.
        tokenizer: a sentencepiece model.
        json: JSON file for the results.
        repeats: runs of each way.
        times: repetitions of the text for memory.
    """

    train: File
    valid: File
    tokenizer: File
    json: OutputFile
    repeats: Count = 3
    times: Count | None = None


def processor(options: BenchmarkOptions) -> sentencepiece.SentencePieceProcessor:
    """Load the tokenizer."""
    return sentencepiece.SentencePieceProcessor(model_file=str(options.tokenizer))


def bare(options: BenchmarkOptions, directory: Path) -> float:
    """Encode the text, and return the processor time of that alone."""
    model = processor(options)
    lines = split_lines(options.train.read_bytes()) + split_lines(options.valid.read_bytes())
    start = time.process_time()
    for first in range(0, len(lines), BATCH_LINES):
        model.encode(lines[first : first + BATCH_LINES], out_type=int, num_threads=1)
    return time.process_time() - start


def prepare(options: BenchmarkOptions, directory: Path, times: int = 1) -> None:
    """Run prepare.py."""
    command = [sys.executable, PREPARE, "--train", *[options.train] * times, "--valid", options.valid]
    command += ["--tokenizer", options.tokenizer, "--workers", "1", "--max-unk-rate", "1"]
    subprocess.run([*command, "--destdir", directory / "data-bin"], check=True, capture_output=True)


def hugging_face(options: BenchmarkOptions, directory: Path) -> None:
    """Encode and group the text with ``datasets``."""
    import datasets

    model = processor(options)

    def encode(batch: dict) -> dict:
        ids = [[1, *line, 2] for line in model.encode([line for line in batch["text"] if line], out_type=int)]
        special = [[1, *[0] * (len(line) - 2), 1] for line in ids]
        return {"input_ids": ids, "attention_mask": [[1] * len(line) for line in ids], "special_tokens_mask": special}

    def group(batch: dict) -> dict:
        joined = {name: list(chain(*values)) for name, values in batch.items()}
        end = len(joined["input_ids"]) // GROUP_TOKENS * GROUP_TOKENS
        return {
            name: [values[start : start + GROUP_TOKENS] for start in range(0, end, GROUP_TOKENS)]
            for name, values in joined.items()
        }

    datasets.disable_progress_bars()
    files = {split: str(getattr(options, split)) for split in ("train", "valid")}
    raw = datasets.load_dataset("text", data_files=files, cache_dir=str(directory))
    raw.map(encode, batched=True, remove_columns=["text"]).map(group, batched=True)


def fairseq(options: BenchmarkOptions, directory: Path) -> None:
    """Encode each split in a plain loop, and run fairseq-preprocess."""
    model = processor(options)
    for split in ("train", "valid"):
        with open(getattr(options, split), "rb") as lines, open(directory / split, "w", encoding="utf-8") as pieces:
            for line in lines:
                pieces.write(" ".join(model.encode(line.decode().rstrip("\n"), out_type=str)) + "\n")
    write_symbols(open_tokenizer_path(options.tokenizer).symbols, directory / "dict.txt")
    command = [Path(sys.executable).parent / "fairseq-preprocess", "--only-source", "--workers", "1"]
    command += ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    command += ["--srcdict", directory / "dict.txt", "--destdir", directory / "data-bin"]
    subprocess.run(command, check=True, capture_output=True)


WAYS = {"bare": bare, "prepare": prepare, "datasets": hugging_face, "fairseq": fairseq}


def measure(way: Callable, options: BenchmarkOptions, directory: Path, **more: int) -> dict[str, float]:
    """Return wall and processor time, and the peak memory of the largest process. Called in a process of its own."""
    directory.mkdir()
    before, wall = time.process_time(), time.perf_counter()
    encoding = way(options, directory, **more)
    wall = time.perf_counter() - wall
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = own.ru_utime + own.ru_stime - before + children.ru_utime + children.ru_stime
    peak = children.ru_maxrss if way is prepare else max(own.ru_maxrss, children.ru_maxrss)
    return {"seconds": wall, "cpu_seconds": encoding or used, "peak_bytes": peak << 10}


def in_new_process(name: str, options: BenchmarkOptions, directory: Path, **more: int) -> dict[str, float]:
    """Measure one way, and print the result."""
    with WorkerPool(1) as pool:
        found = pool.submit(measure, WAYS[name], options, directory, **more).result()
    print(name, more or "", found, flush=True)
    return found


def compare(options: BenchmarkOptions) -> dict:
    """Measure all ways alternately."""
    rounds = []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as name:
            rounds.append({way: in_new_process(way, options, Path(name, way)) for way in WAYS})
            bins = {"prepare": "prepare/data-bin", "fairseq": "fairseq/data-bin"}
            tokens = {way: check_data_bin(Path(name, path, "train"))[1] for way, path in bins.items()}

    def ratios(way: str, to: str) -> dict[str, float | list[float]]:
        found = [each[way]["cpu_seconds"] / each[to]["cpu_seconds"] for each in rounds]
        return {"median": statistics.median(found), "rounds": found}

    return {
        "rounds": rounds,
        "fraction_of_the_bare_rate": ratios("bare", "prepare"),
        "times_faster_than": {way: ratios(way, "prepare") for way in ("datasets", "fairseq")},
        "train_tokens": tokens,
    }


def memory(options: BenchmarkOptions) -> dict:
    """Measure the peak memory for the text, and for the text repeated."""
    with tempfile.TemporaryDirectory() as name:
        once, repeated = (
            in_new_process("prepare", options, Path(name, str(times)), times=times)["peak_bytes"]
            for times in (1, options.times)
        )
    return {"times": options.times, "peak_bytes": [once, repeated], "growth": repeated / once - 1}


def main(options: BenchmarkOptions) -> None:
    """Measure, and write the results."""
    size = {"train_bytes": options.train.stat().st_size, "cpus": os.cpu_count()}
    figures = {**size, **compare(options)}
    if options.times:
        figures["memory"] = memory(options)
    write_json(options.json, provenance() | figures)
    print(json.dumps({name: value for name, value in figures.items() if name != "rounds"}, indent=2))
