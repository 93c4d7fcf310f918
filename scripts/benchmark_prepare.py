#!/usr/bin/env python3
"""Time preprocess/pretrain/prepare.py in comparison with a plain encoding loop followed by fairseq-preprocess.

Both have the same text, sentencepiece model and number of processes (two), and run alternately. Their tokens may differ
in white space that the model does not know (U+0085): fairseq-preprocess treats it as a separator and drops it,
prepare.py keeps it as <unk>.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sentencepiece

from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.workers import WorkerPool

PREPARE = Path(__file__).parents[1] / "preprocess" / "pretrain" / "prepare.py"
WORKERS = 2


def encode_part(model: Path, source: Path, target: Path, start: int, end: int):
    """Encode the lines that start in bytes ``start`` to ``end`` in a plain loop."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    with open(source, "rb") as lines, open(target, "w", encoding="utf-8", newline="\n") as pieces:
        lines.seek(max(start - 1, 0))
        if start:
            lines.readline()
        while lines.tell() < end and (line := lines.readline()):
            pieces.write(" ".join(processor.encode(line.decode().rstrip("\n"), out_type=str)) + "\n")


def by_hand(arguments: argparse.Namespace, directory: Path):
    """Encode each split in two processes, join the halves, and run fairseq-preprocess."""
    with WorkerPool(WORKERS) as pool:
        for split in ("train", "valid"):
            source = getattr(arguments, split)
            middle, size = source.stat().st_size // 2, source.stat().st_size
            bounds = [(0, middle), (middle, size)]
            parts = [directory / f"{split}.{number}" for number in range(WORKERS)]
            jobs = [
                pool.submit(encode_part, arguments.sentencepiece_model, source, part, *bound)
                for part, bound in zip(parts, bounds, strict=True)
            ]
            for job in jobs:
                job.result()
            with open(directory / split, "wb") as whole:
                subprocess.run(["cat", *parts], stdout=whole, check=True)
    open_tokenizer_path(arguments.sentencepiece_model).write_dictionary(directory / "dict.txt")
    command = [Path(sys.executable).parent / "fairseq-preprocess", "--only-source", "--workers", str(WORKERS)]
    command += ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    command += ["--srcdict", directory / "dict.txt", "--destdir", directory / "data-bin"]
    subprocess.run(command, check=True, capture_output=True)


def by_program(arguments: argparse.Namespace, directory: Path):
    """Run prepare.py."""
    command = [sys.executable, PREPARE, "--train", arguments.train, "--valid", arguments.valid]
    command += ["--sentencepiece-model", arguments.sentencepiece_model, "--workers", str(WORKERS)]
    subprocess.run([*command, "--destdir", directory / "data-bin"], check=True, capture_output=True)


def seconds(prepare, arguments: argparse.Namespace, directory: Path) -> float:
    """Return the wall time of one program, in a directory of its own."""
    directory.mkdir()
    start = time.perf_counter()
    prepare(arguments, directory)
    return time.perf_counter() - start


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, metavar="FILE", help="plain text file")
    parser.add_argument("--valid", type=Path, required=True, metavar="FILE", help="plain text file")
    parser.add_argument("--sentencepiece-model", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--repeats", type=positive, default=3, metavar="N", help="runs of each program (default: %(default)s)"
    )
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE", help="JSON file for the results")
    return parser


def main():
    """Time both programs and write the results."""
    arguments = parser().parse_args()
    times = {"by_hand": [], "by_program": []}
    tokens = {}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as name:
            hand, program = Path(name, "by_hand"), Path(name, "by_program")
            times["by_hand"].append(seconds(by_hand, arguments, hand))
            times["by_program"].append(seconds(by_program, arguments, program))
            tokens = {way: check_data_bin(Path(name, way, "data-bin", "train"))[1] for way in times}
    medians = {way: statistics.median(runs) for way, runs in times.items()}
    figures = {
        "train_bytes": arguments.train.stat().st_size,
        "cpus": os.cpu_count(),
        "workers": WORKERS,
        "seconds": times,
        "median_seconds": medians,
        "ratio": medians["by_program"] / medians["by_hand"],
        "train_tokens": tokens,
    }
    write_json(arguments.json, figures)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    with errors_end_the_program():
        main()
