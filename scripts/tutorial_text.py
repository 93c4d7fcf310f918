#!/usr/bin/env python3
"""Write the text of docs/tutorial.md into the current directory: docstrings of installed Python packages.

train.txt and valid.txt have one document for each module, for pretraining. train.tsv, dev.tsv and new.tsv have
sentences of two packages, for the task: which package does a sentence describe?
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from mae_lm_fairseq.study.docstrings import PACKAGES, find_sources, module_prose
from mae_lm_fairseq.utils.errors import errors_end_the_program

SEED = 1


def modules(package: str) -> list[list[str]]:
    """Return the paragraphs of each module of a package that has some, without repetitions within a module."""
    found = []
    for _, path in find_sources([package]):
        paragraphs = list(dict.fromkeys(module_prose(str(path))))
        if paragraphs:
            found.append(paragraphs)
    return found


def write_lines(name: str, lines: Sequence[str]) -> None:
    """Write a file of the current directory."""
    Path(name).write_text("".join(lines), encoding="utf-8")


def write_texts(packages: Sequence[str], labels: Sequence[str], valid: int, rows: Sequence[int]) -> None:
    """Write all files.

    Args:
        packages: names of packages whose docstrings are read.
        labels: the packages that the task distinguishes.
        valid: number of documents in valid.txt.
        rows: numbers of rows in train.tsv, dev.tsv and new.tsv.
    """
    documents, sentences = [], []
    for package in packages:
        for paragraphs in modules(package):
            documents.append("\n".join(paragraphs) + "\n\n")
            if package in labels:
                sentences += [f"{paragraph}\t{package}\n" for paragraph in paragraphs]
    random.seed(SEED)
    random.shuffle(documents)
    random.shuffle(sentences)
    write_lines("train.txt", documents[valid:])
    write_lines("valid.txt", documents[:valid])
    start = 0
    for name, number in reversed(list(zip(("train.tsv", "dev.tsv", "new.tsv"), rows, strict=True))):
        write_lines(name, ["text\tpackage\n", *sentences[start : start + number]])
        start += number
    print(f"{len(documents)} documents, {len(sentences)} labelled sentences")


def main() -> None:
    """Parse the arguments, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="packages (default: %(default)s)")
    parser.add_argument("--labels", nargs=2, default=("sympy", "torch"), help="the task's (default: %(default)s)")
    parser.add_argument("--valid", type=int, default=100, help="documents in valid.txt (default: %(default)s)")
    parser.add_argument(
        "--rows", type=int, nargs=3, default=(2000, 300, 300), help="in each table (default: %(default)s)"
    )
    options = parser.parse_args()
    write_texts(options.packages, options.labels, options.valid, options.rows)


if __name__ == "__main__":
    with errors_end_the_program():
        main()
