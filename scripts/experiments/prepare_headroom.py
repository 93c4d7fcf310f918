#!/usr/bin/env python3
"""Prepare the tasks of the study headroom: for each one the files train, dev and test.

Nothing but training sets is learned from: the development set of a task scores every run, and held-out rows of the
training set, which are not scored, choose the learning rate of fine-tuning.

Example:
    scripts/experiments/prepare_headroom.py --glue glue --ewt ewt --wnut wnut17 --tasks tasks
"""

import lzma
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this package need not be installed

from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles  # noqa: E402
from mae_lm_fairseq.finetuning.sentences.rows import Rows  # noqa: E402
from mae_lm_fairseq.finetuning.sentences.tasks import GlueTask, find_task  # noqa: E402
from mae_lm_fairseq.text.conllu import COLUMNS, UNSPECIFIED  # noqa: E402
from mae_lm_fairseq.text.tables import write_table  # noqa: E402
from mae_lm_fairseq.text.text_samples import documents, evenly_spaced  # noqa: E402
from mae_lm_fairseq.utils.command_line import Directory, Options, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import write_text  # noqa: E402

SENTENCE_TASKS = ("CoLA", "SST-2", "STS-B", "RTE")
MOST_HELD_OUT = 1000
"""Rows or sentences that are held out, but at most a tenth of the training set."""
DEPREL = COLUMNS.index("DEPREL")
FEWEST_WORDS = 50
"""Number of training words below which a dependency relation is not a label, as a part of the sentences may lack it."""


@dataclass(frozen=True)
class PrepareOptions(Options):
    """Options of the preparation.

    Attributes:
        glue: directory with CoLA, SST-2, STS-B and RTE.
        ewt: directory with en_ewt-ud-{train,dev}.conllu.xz.
        wnut: directory with wnut17train.conll and emerging.dev.conll.
        tasks: directory for the result.
    """

    glue: Directory
    ewt: Directory
    wnut: Directory
    tasks: Directory


def main(options: PrepareOptions) -> None:
    """Write the files of all tasks."""
    for name in SENTENCE_TASKS:
        prepare_sentences(find_task(name), options.glue, options.tasks / name)
    treebank = [read_sentences(options.ewt / f"en_ewt-ud-{split}.conllu.xz") for split in ("train", "dev")]
    entities = [read_sentences(options.wnut / name) for name in ("wnut17train.conll", "emerging.dev.conll")]
    prepare_words(*treebank, options.tasks / "UPOS", ".conllu")
    prepare_words(*with_main_relations(*treebank), options.tasks / "DEPREL", ".conllu")
    prepare_words(*entities, options.tasks / "WNUT-17", ".conll")


def held_out(count: int) -> set[int]:
    """Return the numbers of the rows that are held out of a training set, evenly spaced in it."""
    return set(evenly_spaced(range(count), min(MOST_HELD_OUT, count // 10)))


def prepare_sentences(task: GlueTask, glue: Path, directory: Path) -> None:
    """Write train.jsonl, dev.jsonl and test.jsonl of a task of GLUE."""
    files = GlueFiles(task, glue)
    train, test = as_records(task, files.read("train")), as_records(task, files.read("valid"))
    chosen = held_out(len(train))
    sets = {
        "train": [record for number, record in enumerate(train) if number not in chosen],
        "dev": [record for number, record in enumerate(train) if number in chosen],
        "test": test,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, records in sets.items():
        write_table(directory / f"{name}.jsonl", list(records[0]), records)
    print(task.name, {name: len(records) for name, records in sets.items()})


def as_records(task: GlueTask, rows: Rows) -> list[dict[str, str | float]]:
    """Return the rows as records with the columns text, text2 (of pairs) and label."""
    records = []
    for sentences, label in zip(rows.sentences, rows.labels, strict=True):
        record = dict(zip(("text", "text2"), sentences, strict=False))
        record["label"] = label if task.is_regression else task.labels[label]
        records.append(record)
    return records


def read_sentences(path: Path) -> list[list[str]]:
    """Return the lines of each sentence of a file of labelled words."""
    if path.suffix == ".xz":
        text = lzma.decompress(path.read_bytes()).decode()
    else:
        text = path.read_text(encoding="utf-8")
    return list(documents(text.splitlines()))


def with_main_relations(
    train: Sequence[list[str]], test: Sequence[list[str]]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the sentences of a treebank with dependency relations as labels of words.

    Subtypes, such as that of ``nmod:poss``, are left out. Words with a relation of fewer than 50 training words have no
    label.
    """
    counts = Counter(main_relation(line) for lines in train for line in lines if is_word(line))
    labels = {relation for relation, count in counts.items() if count >= FEWEST_WORDS}
    labelled_train = [with_relations(lines, labels) for lines in train]
    labelled_test = [with_relations(lines, labels) for lines in test]
    return labelled_train, labelled_test


def is_word(line: str) -> bool:
    """Return whether a line is that of a word, not a comment, a multiword token or an empty node."""
    return line.partition("\t")[0].isdecimal()


def main_relation(line: str) -> str:
    """Return the dependency relation of a word without its subtype."""
    return line.split("\t")[DEPREL].partition(":")[0]


def with_relations(lines: Sequence[str], labels: set[str]) -> list[str]:
    """Return the lines of a sentence with main relations; a word that has none of the labels has no relation."""
    labelled = []
    for line in lines:
        if is_word(line):
            cells = line.split("\t")
            relation = main_relation(line)
            cells[DEPREL] = relation if relation in labels else UNSPECIFIED
            line = "\t".join(cells)
        labelled.append(line)
    return labelled


def prepare_words(train: Sequence[list[str]], test: Sequence[list[str]], directory: Path, suffix: str) -> None:
    """Write the files train, dev and test of labelled words."""
    chosen = held_out(len(train))
    sets = {
        "train": [lines for number, lines in enumerate(train) if number not in chosen],
        "dev": [lines for number, lines in enumerate(train) if number in chosen],
        "test": test,
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, sentences in sets.items():
        text = "".join("\n".join(lines) + "\n\n" for lines in sentences)
        write_text(directory / f"{name}{suffix}", text)
    print(directory.name, {name: len(sentences) for name, sentences in sets.items()})


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(PrepareOptions, sys.argv[1:], __doc__, "prepare_headroom.py"))
