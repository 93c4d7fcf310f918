#!/usr/bin/env python3
"""Compare preparing data with the bare tokenizer, with Hugging Face's datasets, and with fairseq's own programs.

All use one process, the same text and the same sentencepiece model, and run alternately:

bare           only encodes the text, which is in memory, in one thread
prepare        mae-lm prepare, from files to a data-bin
shards         mae-lm prepare --shards 1, which works in parts
datasets       datasets.map, as run_mlm.py of transformers uses it: encode lines, then group them to 512 tokens
fairseq        an encoding loop, then fairseq-preprocess

Processor times count, because other load changes them little; the times of programs include their start. Ratios are
formed within each round, and their median counts. The tokens of fairseq may differ in white space that the model does
not know (U+0085): fairseq-preprocess drops it.

Memory is the largest of any one process. With --times N it is also measured for the text repeated N times.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import sentencepiece

from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.text_files import split_lines
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance
from mae_lm_fairseq.utils.workers import WorkerPool

PREPARE = Path(__file__).parents[1] / "preprocess" / "pretrain" / "prepare.py"
BATCH_LINES = 1000
GROUP_TOKENS = 512


def processor(arguments: argparse.Namespace) -> sentencepiece.SentencePieceProcessor:
    """Load the tokenizer."""
    return sentencepiece.SentencePieceProcessor(model_file=str(arguments.tokenizer))


def bare(arguments: argparse.Namespace, directory: Path) -> float:
    """Encode the text, and return the processor time of that alone."""
    model = processor(arguments)
    lines = split_lines(arguments.train.read_bytes()) + split_lines(arguments.valid.read_bytes())
    start = time.process_time()
    for first in range(0, len(lines), BATCH_LINES):
        model.encode(lines[first : first + BATCH_LINES], out_type=int, num_threads=1)
    return time.process_time() - start


def prepare(arguments: argparse.Namespace, directory: Path, *options: object, times: int = 1) -> None:
    """Run prepare.py."""
    command = [sys.executable, PREPARE, "--train", *[arguments.train] * times, "--valid", arguments.valid]
    command += ["--tokenizer", arguments.tokenizer, "--workers", "1", "--max-unk-rate", "1"]
    subprocess.run([*command, "--destdir", directory / "data-bin", *map(str, options)], check=True, capture_output=True)


def shards(arguments: argparse.Namespace, directory: Path, times: int = 1) -> None:
    """Run prepare.py in parts."""
    prepare(arguments, directory, "--shards", 1, times=times)


def hugging_face(arguments: argparse.Namespace, directory: Path) -> None:
    """Encode and group the text with ``datasets``."""
    import datasets

    model = processor(arguments)

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
    files = {split: str(getattr(arguments, split)) for split in ("train", "valid")}
    raw = datasets.load_dataset("text", data_files=files, cache_dir=str(directory))
    raw.map(encode, batched=True, remove_columns=["text"]).map(group, batched=True)


def fairseq(arguments: argparse.Namespace, directory: Path) -> None:
    """Encode each split in a plain loop, and run fairseq-preprocess."""
    model = processor(arguments)
    for split in ("train", "valid"):
        with open(getattr(arguments, split), "rb") as lines, open(directory / split, "w", encoding="utf-8") as pieces:
            for line in lines:
                pieces.write(" ".join(model.encode(line.decode().rstrip("\n"), out_type=str)) + "\n")
    open_tokenizer_path(arguments.tokenizer).write_dictionary(directory / "dict.txt")
    command = [Path(sys.executable).parent / "fairseq-preprocess", "--only-source", "--workers", "1"]
    command += ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    command += ["--srcdict", directory / "dict.txt", "--destdir", directory / "data-bin"]
    subprocess.run(command, check=True, capture_output=True)


WAYS = {"bare": bare, "prepare": prepare, "shards": shards, "datasets": hugging_face, "fairseq": fairseq}


def measure(way: Callable, arguments: argparse.Namespace, directory: Path, **options: int) -> dict[str, float]:
    """Return wall and processor time, and the peak memory of the largest process. Called in a process of its own."""
    directory.mkdir()
    before, wall = time.process_time(), time.perf_counter()
    encoding = way(arguments, directory, **options)
    wall = time.perf_counter() - wall
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = own.ru_utime + own.ru_stime - before + children.ru_utime + children.ru_stime
    peak = children.ru_maxrss if way in (prepare, shards) else max(own.ru_maxrss, children.ru_maxrss)
    return {"seconds": wall, "cpu_seconds": encoding or used, "peak_bytes": peak << 10}


def in_new_process(name: str, arguments: argparse.Namespace, directory: Path, **options: int) -> dict[str, float]:
    """Measure one way, and print the result."""
    with WorkerPool(1) as pool:
        found = pool.submit(measure, WAYS[name], arguments, directory, **options).result()
    print(name, options or "", found, flush=True)
    return found


def compare(arguments: argparse.Namespace) -> dict:
    """Measure all ways alternately."""
    rounds = []
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as name:
            rounds.append({way: in_new_process(way, arguments, Path(name, way)) for way in WAYS})
            bins = {"prepare": "prepare/data-bin", "shards": "shards/data-bin/shard0", "fairseq": "fairseq/data-bin"}
            tokens = {way: check_data_bin(Path(name, path, "train"))[1] for way, path in bins.items()}

    def ratios(way: str, to: str) -> dict[str, float | list[float]]:
        found = [each[way]["cpu_seconds"] / each[to]["cpu_seconds"] for each in rounds]
        return {"median": statistics.median(found), "rounds": found}

    return {
        "rounds": rounds,
        "fraction_of_the_bare_rate": {way: ratios("bare", way) for way in ("prepare", "shards")},
        "times_faster_than": {way: ratios(way, "prepare") for way in ("datasets", "fairseq")},
        "train_tokens": tokens,
    }


def memory(arguments: argparse.Namespace) -> dict:
    """Measure the peak memory for the text, and for the text repeated."""
    peaks = {}
    for way in ("prepare", "shards"):
        with tempfile.TemporaryDirectory() as name:
            peaks[way] = [
                in_new_process(way, arguments, Path(name, str(times)), times=times)["peak_bytes"]
                for times in (1, arguments.times)
            ]
    return {"times": arguments.times, "peak_bytes": peaks, "growth": {way: b / a - 1 for way, (a, b) in peaks.items()}}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, metavar="FILE", help="plain text file")
    parser.add_argument("--valid", type=Path, required=True, metavar="FILE", help="plain text file")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--repeats", type=positive, default=3, metavar="N", help="runs of each way (default: %(default)s)"
    )
    parser.add_argument("--times", type=positive, metavar="N", help="repetitions of the text for memory")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE", help="JSON file for the results")
    return parser


def main():
    """Measure, and write the results."""
    arguments = parser().parse_args()
    size = {"train_bytes": arguments.train.stat().st_size, "cpus": os.cpu_count()}
    figures = {**size, **compare(arguments)}
    if arguments.times:
        figures["memory"] = memory(arguments)
    write_json(arguments.json, provenance() | figures)
    print(json.dumps({name: value for name, value in figures.items() if name != "rounds"}, indent=2))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
