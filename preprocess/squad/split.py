#!/usr/bin/env python3
"""Split a file in SQuAD's JSON by article into train.json and dev.json, which then have no text in common."""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.utils.command_line import Argument, Directory, Options, parse
from mae_lm_fairseq.utils.directories import new_directory
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import read_json, write_text


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options):
    """Options of the program.

    Attributes:
        file: questions of SQuAD 1.1 or 2.0.
        dev_articles: number of articles in dev.json.
        seed: seed that chooses the articles.
        out: new directory for train.json and dev.json.
    """

    file: Annotated[Path, Argument("FILE", positional=True)]
    dev_articles: Annotated[int, Argument("N")]
    seed: Annotated[int, Argument("S")] = 1
    out: Directory


def main(words: list[str]) -> None:
    """Run the program."""
    options = parse(SplitOptions, words, __doc__, "split.py")
    read_squad(options.file, version_2=True)  # refuses a file that is not in SQuAD's format
    content = read_json(options.file)
    version, articles = content.get("version", ""), content["data"]
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
            write_text(directory / name, json.dumps({"version": version, "data": part}) + "\n")
    for name, part in parts.items():
        print(f"{name}: {len(part)} articles, {_questions(part)} questions")


def _questions(articles: list[dict]) -> int:
    return sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])
