#!/usr/bin/env python3
"""Split a file in SQuAD's JSON by article into train.json and dev.json, which then have no text in common."""

import argparse
import json
import random
from pathlib import Path

from mae_lm_fairseq.finetuning.squad.files import read_articles
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import new_directory


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("file", metavar="FILE", help="questions of SQuAD 1.1 or 2.0")
    add("--dev-articles", type=int, required=True, metavar="N", help="number of articles in dev.json")
    add("--seed", type=int, default=1, metavar="S", help="seed that chooses the articles (default: %(default)s)")
    add("--out", type=Path, required=True, metavar="DIR", help="new directory for train.json and dev.json")
    return parser


def main(argv: list[str] | None = None):
    """Run the command."""
    options = parser().parse_args(argv)
    version, articles = read_articles(options.file)
    if not 0 < options.dev_articles < len(articles):
        raise UserError(f"--dev-articles {options.dev_articles}: {options.file} has {len(articles)} articles")
    chosen = set(random.Random(options.seed).sample(range(len(articles)), options.dev_articles))
    parts = {
        name: [article for number, article in enumerate(articles) if (number in chosen) is in_dev]
        for name, in_dev in (("dev.json", True), ("train.json", False))
    }
    if empty := [name for name, part in parts.items() if not _questions(part)]:
        raise UserError(f"{options.file}: no article for {empty[0]} has questions; choose another --seed")
    with new_directory(options.out) as directory:
        for name, part in parts.items():
            (directory / name).write_text(json.dumps({"version": version, "data": part}) + "\n", encoding="utf-8")
    for name, part in parts.items():
        print(f"{name}: {len(part)} articles, {_questions(part)} questions")


def _questions(articles: list[dict]) -> int:
    return sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])


if __name__ == "__main__":
    with errors_end_the_program():
        main()
