"""Small files of labelled words, whose labels depend on the word alone or on the word before it."""

import random
import shlex
from pathlib import Path

from tests.support.finetuning import SHAPE
from tests.support.tokenizers import write_sentencepiece
from tests.support.training import built, parse

OPTIONS = shlex.split(
    "--task token_classification --criterion token_classification --tokens-per-sample 32 --max-positions 64 "
    "--cpu --optimizer fused_adamw --lr 1e-3 --batch-size 8 --num-workers 0"
)
NAMES = {"person": ["Anna", "Börje", "Chloé", "Elif"], "place": ["Ulm", "Köln", "Łódź", "Paris"]}
TITLES = {"person": ["Dr", "Ms"], "place": ["Old", "New"]}
VERBS, OTHERS = ["sees", "left", "likes"], ["the", "a", "big", ".", "1½", "😀"]
UPOS = {"VERB": VERBS, "PROPN": [name for names in NAMES.values() for name in names], "X": OTHERS}


def sentences(count: int, seed: int = 1) -> list[list[tuple[str, str]]]:
    """Return sentences of words with labels in BIO. An entity is a name, with or without a title before it."""
    generator, made = random.Random(seed), []
    for _ in range(count):
        sentence = []
        for _ in range(generator.randint(1, 5)):
            if generator.random() < 0.4:
                kind = generator.choice(list(NAMES))
                words = [generator.choice(NAMES[kind])]
                words = [generator.choice(TITLES[kind]), *words] if generator.random() < 0.5 else words
                sentence += zip(words, [f"B-{kind}", f"I-{kind}"], strict=False)
            else:
                sentence.append((generator.choice([*VERBS, *OTHERS]), "O"))
        made.append(sentence)
    return made


def write_texts(directory: Path) -> None:
    """Write the words alone to ``train.txt`` and ``valid.txt``, in documents of five lines."""
    for name, count, seed in (("train", 300, 1), ("valid", 60, 2)):
        lines = []
        for number, sentence in enumerate(sentences(count, seed)):
            lines.append(" ".join(word for word, _ in sentence))
            if number % 5 == 4:
                lines.append("")
        (directory / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_columns(path: Path, labelled: list[list[tuple[str, str]]]) -> Path:
    """Write words and labels, separated by tabs."""
    text = "\n".join("".join(f"{word}\t{label}\n" for word, label in sentence) for sentence in labelled)
    path.write_text(text, encoding="utf-8")
    return path


def write_conllu(path: Path, labelled: list[list[tuple[str, str]]]) -> Path:
    """Write the words in CoNLL-U, with parts of speech."""
    lines = []
    for number, sentence in enumerate(labelled):
        lines.append(f"# sent_id = {number}")
        for index, (word, _) in enumerate(sentence, 1):
            tag = next((tag for tag, words in UPOS.items() if word in words), "NOUN")
            lines.append("\t".join([str(index), word, "_", tag, *"______"]))
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tokenizer(directory: Path) -> Path:
    """Write a data-bin that holds only a tokenizer and a dictionary, trained on such sentences."""
    return write_sentencepiece(directory, [" ".join(word for word, _ in sentence) for sentence in sentences(200)], 90)


def set_up_tagging(
    data: Path, train: Path, column: str, *arguments, arch: str = "mae_lm_tiny", dev: Path | None = None
):
    """Return configuration, task, model and criterion for files of labelled words and further options."""
    files = ["--train-file", train, "--valid-file", dev or train, "--column", column]
    return built(parse(data, *OPTIONS, *SHAPE, "--arch", arch, *files, *arguments))
