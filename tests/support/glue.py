"""Small synthetic GLUE data sets in the official and the Hub layout, and a tokenizer."""

import json
import random
from pathlib import Path

from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, GlueTask
from tests.support.tokenizers import write_sentencepiece

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "sat",
    "ran",
    "flew",
    "on",
    "over",
    "under",
    "mat",
    "house",
    "tree",
    "big",
    "small",
    "red",
    "blue",
    "good",
    "bad",
    "very",
    "not",
]

# Official headers of training and development sets, and of test sets.
HEADERS = {
    "CoLA": (None, "index sentence"),
    "SST-2": ("sentence label", "index sentence"),
    "MRPC": ("Quality,#1 ID,#2 ID,#1 String,#2 String", "index,#1 ID,#2 ID,#1 String,#2 String"),
    "STS-B": (
        "index genre filename year old_index source1 source2 sentence1 sentence2 score",
        "index genre filename year old_index source1 source2 sentence1 sentence2",
    ),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2"),
    "MNLI": (
        "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
        "sentence1 sentence2 label1 gold_label",
        "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
        "sentence1 sentence2",
    ),
    "QNLI": ("index question sentence label", "index question sentence"),
    "RTE": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
    "WNLI": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
}


def sentence(generator: random.Random, longest: int = 9) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randint(3, longest)))


def write_tokenizer(directory: Path, seed: int = 0) -> Path:
    """Write the tokenizer files of a pretraining data-bin."""
    generator = random.Random(seed)
    return write_sentencepiece(directory, [sentence(generator) for _ in range(300)], 60)


def make_rows(task: GlueTask, rows: int = 12) -> dict[str, list[dict]]:
    """Return synthetic rows for each official set.

    Each row has ``sentences`` and a ``label`` as spelled in the TSV files. The label is a function of the first word.
    """
    generator, sets = random.Random(1), {}
    for official in task.splits.values():
        sets[official] = []
        for _ in range(rows):
            sentences = [sentence(generator) for _ in task.columns]
            first = WORDS.index(sentences[0].split()[0])
            label = task.labels[first % len(task.labels)] if task.labels else f"{first / len(WORDS) * 5:.3f}"
            sets[official].append({"sentences": sentences, "label": label})
    return sets


def write_official(directory: Path, task: GlueTask, sets: dict[str, list[dict]]) -> Path:
    """Write the rows as ``directory/TASK/*.tsv``."""
    folder = directory / task.name
    folder.mkdir(parents=True)
    for official, rows in sets.items():
        is_test = official.startswith("test")
        header = HEADERS[task.name][is_test]
        names = (header.split("," if "," in header else " ")) if header else ["source", "label", "star", "sentence"]
        lines = ["\t".join(names)] if header else []
        for index, row in enumerate(rows):
            cells = dict(zip(task.columns, row["sentences"], strict=True)) | {task.label_column: row["label"]}
            cells |= {"index": str(index), "id": str(index)}
            lines.append("\t".join(cells.get(name, "x") for name in names))
        (folder / f"{official}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def write_hub(directory: Path, task: GlueTask, sets: dict[str, list[dict]], as_list: bool = False) -> Path:
    """Write the rows as ``directory/task/*.jsonl``, or ``.json`` if ``as_list``."""
    folder = directory / task.name.lower().replace("-", "")
    folder.mkdir(parents=True)
    for official, rows in sets.items():
        records = []
        for index, row in enumerate(rows):
            if official.startswith("test"):
                label = -1
            else:
                label = task.labels.index(row["label"]) if task.labels else float(row["label"])
            texts = zip(task.hub_columns or task.columns, row["sentences"], strict=True)
            records.append({**dict(texts), "label": label, "idx": index})
        name = official.replace("dev", "validation")
        if as_list:
            (folder / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
        else:
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return directory


ALL = list(TASKS.values())
