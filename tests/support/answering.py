"""Synthetic SQuAD-style questions, a tokenizer for them, and in-process fine-tuning on them."""

import json
import random
import shlex
from pathlib import Path

from tests.support.finetuning import SHAPE
from tests.support.tokenizers import write_sentencepiece
from tests.support.training import built, parse

NAMES = ["Anna", "Börje", "Chloé", "Dmitri", "Elif", "Fatima", "Görkem", "Hana"]
PLACES = ["Örebro", "Paris", "New York", "Ulm", "Ankara", "São Paulo", "Köln", "Łódź"]
YEARS = ["1848", "1½", "2001", "1912", "10,000", "1066", "1999", "1789"]
OPTIONS = shlex.split(
    "--task question_answering --criterion question_answering --tokens-per-sample 64 --doc-stride 16 "
    "--max-positions 64 --cpu --optimizer fused_adamw --lr 1e-3 --batch-size 8 --num-workers 0"
)


def write_tokenizer(directory: Path, pieces: int = 200) -> Path:
    """Write a data-bin that holds only a tokenizer and a dictionary, trained on the contexts and questions."""
    text = [f"{context(number)} {question}" for number in range(8) for question, _ in questions(number)]
    return write_sentencepiece(directory, text, pieces)


def context(number: int) -> str:
    """Return three sentences about one person, in an order that depends on the number."""
    name, place, year = NAMES[number], PLACES[number], YEARS[number]
    sentences = [f"{name} lives in {place}.", f"The year was {year}.", "Nothing else is known … 😀 ﬁn."]
    random.Random(number).shuffle(sentences)
    return "  ".join(sentences)


def questions(number: int) -> list[tuple[str, str]]:
    """Return (question, answer) pairs for ``context(number)``."""
    return [(f"Where does {NAMES[number]} live?", PLACES[number]), (f"When was {NAMES[number]} there?", YEARS[number])]


def write_squad(path: Path, version_2: bool = False, people: int = 8) -> Path:
    """Write a SQuAD JSON file with one article per person; version 2.0 adds one unanswerable question to each."""
    articles = []
    for number in range(people):
        text = context(number)
        asked = [
            {"question": question, "answers": [{"text": answer, "answer_start": text.index(answer)}]}
            for question, answer in questions(number)
        ]
        if version_2:
            asked = [{**entry, "is_impossible": False} for entry in asked]
            asked.append({"question": f"Why does {NAMES[number]} live?", "answers": [], "is_impossible": True})
        qas = [{"id": f"{number}-{index}", **entry} for index, entry in enumerate(asked)]
        articles.append({"title": NAMES[number], "paragraphs": [{"context": text, "qas": qas}]})
    content = {"version": "v2.0" if version_2 else "1.1", "data": articles}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def set_up_answering(data_bin: Path, squad: Path, *arguments, arch: str = "mae_lm_tiny"):
    """Return configuration, task, model and criterion for a question file and further options."""
    files = ["--train-file", squad, "--valid-file", squad]
    return built(parse(data_bin, *OPTIONS, *SHAPE, *files, "--arch", arch, *arguments))
