"""Files of GLUE and SQuAD, and predictions, damaged or absurd. Each function makes rows of the table.

As in :mod:`~tests.fault_injection.inputs`, every case has to end well.
"""

import functools
import io
import json
import random
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from mae_lm_fairseq.downstream.glue import preparation as glue_preparation
from mae_lm_fairseq.downstream.glue.tasks import TASKS, Task
from mae_lm_fairseq.downstream.squad import metrics as squad_metrics
from mae_lm_fairseq.downstream.squad.files import read_squad
from mae_lm_fairseq.downstream.squad.windows import SpanWindows
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.tokenizer import Tokenizer, train_model
from tests.fault_injection.damage import TEXTS, cuts, damaged, damaged_json
from tests.fault_injection.outcomes import CLEAR, WHOLE, outcome, product_outcome, quietly
from tests.fault_injection.report import Row
from tests.fault_injection.workplace import Workplace
from tests.support import ROOT

SENTENCES = ("the cat sat on a mat", "a dog, a bird", "it rains", "no cat sat there", "birds fly", "the end")


def make_tokenizer(directory: Path) -> Tokenizer:
    """A small one for :data:`SENTENCES`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "sentencepiece.bpe.model"
    path.write_bytes(train_model(SENTENCES * 10, 50, 1.0))
    return Tokenizer(path)


# -------------------------------------------------------------------------------------------------------------- GLUE

GLUE = ("CoLA", "STS-B", "RTE")
"""Without a header; with scores; with pairs and names of classes."""
LAYOUTS = ("tsv", "jsonl", "json", "parquet")
_CELLS = ("", " ", "\0", "nan", "1e999", "-1", "9" * 5000, "\ufeff", "a\rb", "\x85", "\t", "entailment", "two\nlines")
_COLUMNS = (
    *([1] * 6, [2**63 - 1] * 6, [b"\xff"] * 6, [None] * 6, [[1]] * 6, [{"a": 1}] * 6, [float("nan")] * 6, [True] * 6),
    pa.array([2**62] * 6, pa.timestamp("ms")),
    pa.array([2**31 - 1] * 6, pa.date32()),
    pa.array([b"\xff\xfe"] * 6).cast(pa.large_binary()),
    pa.array(["a"] * 6).dictionary_encode(),
)
"""What might stand in a column of Parquet."""


def glue_records(task: Task, official: str) -> list[dict[str, Any]]:
    """Six rows in the Hugging Face layout."""
    labels = range(len(task.labels)) if task.labels else (0.0, 2.5, 5.0)
    return [
        {
            **{column: SENTENCES[number - place] for place, column in enumerate(task.hub_columns)},
            "label": -1 if official.startswith("test") else labels[number % len(labels)],
            "idx": number,
        }
        for number in range(len(SENTENCES))
    ]


def glue_file(task: Task, official: str, layout: str) -> bytes:
    """A set of six rows in one of :data:`LAYOUTS`."""
    records = glue_records(task, official)
    if layout == "parquet":
        return _parquet(pa.Table.from_pylist(records))
    if layout == "json":
        return json.dumps(records).encode()
    if layout == "jsonl":
        return "".join(f"{json.dumps(record)}\n" for record in records).encode()
    return _tsv(task, official, records).encode()


def _tsv(task: Task, official: str, records: list[dict[str, Any]]) -> str:
    sentences = [[record[column] for column in task.hub_columns] for record in records]
    if official.startswith("test"):
        lines = [["index", *task.columns], *([str(number), *row] for number, row in enumerate(sentences))]
        return "".join("\t".join(line) + "\n" for line in lines)
    labels = [task.labels[record["label"]] if task.labels else str(record["label"]) for record in records]
    if task.headerless:
        lines = [["x", label, "", *row] for row, label in zip(sentences, labels, strict=True)]
    else:
        lines = [[*task.columns, task.label_column]]
        lines += [[*row, label] for row, label in zip(sentences, labels, strict=True)]
    return "".join("\t".join(line) + "\n" for line in lines)


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def _damaged_set(content: bytes, layout: str, generator: random.Random) -> bytes:
    if generator.random() < 0.2:
        return generator.choice(list(TEXTS.values()))(generator)
    if layout == "json":
        return damaged_json(content, generator)
    if generator.random() < 0.3:
        return damaged(content, generator)
    if layout == "parquet":
        return _damaged_table(content, generator)
    lines = content.splitlines(keepends=True)
    place = generator.randrange(len(lines))
    if layout == "jsonl":
        lines[place] = damaged_json(lines[place], generator) + b"\n"
    else:
        cells = lines[place].decode().split("\t")
        cells[generator.randrange(len(cells))] = generator.choice([*_CELLS, *cells])
        lines[place] = "\t".join(cells).encode()
    return b"".join(lines)


def _damaged_table(content: bytes, generator: random.Random) -> bytes:
    table = parquet.read_table(io.BytesIO(content))
    place = generator.randrange(table.num_columns)
    name = generator.choice([table.column_names[place], table.column_names[place - 1], "other"])
    return _parquet(table.set_column(place, name, [pa.array(generator.choice(_COLUMNS))]))


def damaged_glue(place: Workplace, times: int) -> Iterator[Row]:
    """One set of a task, in every layout that is read; the others stay as they are."""
    cut = Row("a set of GLUE in TSV, JSON, JSON lines or Parquet that is cut, at every length or many", WHOLE)
    absurd = Row("a set of GLUE with other types, columns, cells, labels, numbers, bytes; in every layout", WHOLE)
    tokenizer = make_tokenizer(place.directory)
    for task in map(TASKS.get, GLUE):
        for layout in LAYOUTS:
            folder = place.directory / layout / task.name
            folder.mkdir(parents=True)
            sets = _write_sets(task, folder, layout)
            prepare = functools.partial(_prepare, task, folder, tokenizer)
            prepare(folder / "sound")
            check = functools.partial(_check_data, folder / "sound")
            for path, whole in sets.items():
                contents = [(cut, content) for content in cuts(whole, times)]
                contents += [(absurd, _damaged_set(whole, layout, place.random)) for _ in range(times)]
                for row, content in contents:
                    path.write_bytes(content)
                    row.record(product_outcome(prepare, check, place.directory / "out"))
                path.write_bytes(whole)
    yield from (cut, absurd)


def _write_sets(task: Task, folder: Path, layout: str) -> dict[Path, bytes]:
    """All sets of a task, and what is in their files."""
    sets = {}
    for official in task.splits.values():
        name = official if layout == "tsv" else official.replace("dev", "validation")
        path = folder / f"{name}.{layout}"
        sets[path] = glue_file(task, official, layout)
        path.write_bytes(sets[path])
    return sets


def _prepare(task: Task, folder: Path, tokenizer: Tokenizer, destdir: Path) -> None:
    glue_preparation.prepare(task, folder, tokenizer, destdir, 32, skip_malformed=True)


def _check_data(sound: Path, destdir: Path) -> None:
    names, expected = ({path.relative_to(directory) for path in directory.rglob("*")} for directory in (destdir, sound))
    if names != expected:
        raise ValueError(f"other files: {names ^ expected}")
    for path in destdir.rglob("*.bin"):
        check_data_bin(path.with_suffix(""))


# ------------------------------------------------------------------------------------------------------------- SQuAD


def squad(version_2: bool = True) -> dict[str, Any]:
    """Three articles in SQuAD's format."""
    articles = []
    for number, context in enumerate(SENTENCES[:3]):
        word = context.split()[-1]
        answer = {"text": word, "answer_start": context.index(word)}
        asked = [{"id": f"{number}a", "question": "what?", "answers": [answer]}]
        if version_2:  # 1.1 does not know the key
            asked = [{**asked[0], "is_impossible": False}]
            asked.append({"id": f"{number}b", "question": "who?", "answers": [], "is_impossible": True})
        articles.append({"title": f"article {number}", "paragraphs": [{"context": context, "qas": asked}]})
    return {"version": "v2.0", "data": articles}


def damaged_squad(place: Workplace, times: int) -> Iterator[Row]:
    """A file of questions, as training reads it and as preprocess/squad splits it."""
    cut = Row("a file of SQuAD that is cut, at every length or many", WHOLE)
    absurd = Row("a file of SQuAD with other types, keys missing or twice, other bytes; read and split", WHOLE)
    tokenizer = make_tokenizer(place.directory)
    split = runpy.run_path(str(ROOT / "preprocess" / "squad" / "split.py"))["main"]
    path, whole = place.directory / "squad.json", json.dumps(squad()).encode()

    def read() -> None:
        windows = SpanWindows(read_squad(path, version_2=True), tokenizer, 16, 4, seed=1)
        windows.collater([windows[number] for number in range(len(windows))])

    def split_file(out: Path) -> None:
        split([str(path), "--dev-articles", "1", "--out", str(out)])

    def check(out: Path) -> None:
        for name in ("train.json", "dev.json"):
            read_squad(out / name, version_2=True)

    path.write_bytes(whole)
    quietly(lambda: (read(), split_file(place.directory / "sound")))
    for row, contents in (
        (cut, cuts(whole, 5 * times)),
        (absurd, (damaged_json(whole, place.random) for _ in range(10 * times))),
    ):
        for content in contents:
            path.write_bytes(content)
            row.record(outcome(read) or product_outcome(split_file, check, place.directory / "out"))
    yield from (cut, absurd)


def damaged_predictions(place: Workplace, times: int) -> Iterator[Row]:
    """What evaluation/squad_metrics is given: questions, answers, probabilities."""
    row = Row("questions, predictions or probabilities for SQuAD's metrics that are damaged or of other types", CLEAR)
    contents = {}
    for version_2 in (True, False):
        dataset = squad(version_2)
        ids = [asked["id"] for article in dataset["data"] for asked in article["paragraphs"][0]["qas"]]
        predictions, probabilities = dict.fromkeys(ids, "a mat"), {name: number / 9 for number, name in enumerate(ids)}
        for name, content in (("questions", dataset), ("answers", predictions), ("probabilities", probabilities)):
            contents[place.directory / f"{name}-{version_2}.json"] = json.dumps(content).encode()
    for path, content in contents.items():
        path.write_bytes(content)
    for victim, content in contents.items():
        version_2 = victim.stem.endswith("True")
        questions, answers, probabilities = (str(path) for path in contents if path.stem.endswith(str(version_2)))
        arguments = [questions, answers, *(["--na-prob-file", probabilities] if version_2 else [])]
        quietly(lambda: squad_metrics.main(arguments))  # noqa: B023
        for case in (*cuts(content, times), *(damaged_json(content, place.random) for _ in range(5 * times))):
            victim.write_bytes(case)
            row.record(outcome(lambda: squad_metrics.main(arguments)))  # noqa: B023
        victim.write_bytes(content)
    yield row


FAULTS = (
    (damaged_glue, 10, 100),
    (damaged_squad, 50, 500),
    (damaged_predictions, 50, 500),
)
"""Function, times in a quick round, times in a full one."""
