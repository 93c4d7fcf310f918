"""Data of the main-sentence experiment: a corpus and tasks as arrays in one compressed file that needs NumPy alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

FILE = "data.npz"
LENGTH = 128
"""Tokens of a pretraining sequence, and the maximum of a fine-tuning one."""
BOS, PAD, EOS, UNK = range(4)
SST2_DEV = 872
"""Rows of SST-2's development set, which are the first of its test rows."""


@dataclass(frozen=True)
class Rows:
    """Texts of one set.

    Attributes:
        tokens: uint16[sum of lengths], the texts, concatenated.
        lengths: uint16[rows].
        labels: float32, a class number or a score in [0, 1] for each row; or, for labels of words, a class number for
            each token, which is -1 where no word starts.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    ends: np.ndarray = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "ends", np.cumsum(self.lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def labels_words(self) -> bool:
        """Whether the labels are of words."""
        return len(self.labels) == len(self.tokens)

    def text(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens int64[length] of a row, and its label float32[1] or those of its tokens."""
        part = slice(self.ends[row] - self.lengths[row], self.ends[row])
        return self.tokens[part].astype(np.int64), self.labels[part if self.labels_words else slice(row, row + 1)]


@dataclass(frozen=True)
class Data:
    """Everything that an experiment reads.

    Attributes:
        vocab_size: number of tokens, ``<mask>``, the last one, included.
        train, valid: uint16[sequences, :data:`LENGTH`], without padding.
        tasks: sets by task and then by name: ``train``, ``test``, and ``dev`` of UPOS.
    """

    vocab_size: int
    train: np.ndarray
    valid: np.ndarray
    tasks: dict[str, dict[str, Rows]]

    @property
    def mask(self) -> int:
        return self.vocab_size - 1


def sequences(tokens: np.ndarray) -> np.ndarray:
    """Divide a text, whose lines end with ``</s>``, into full sequences [N, :data:`LENGTH`] that begin with ``<s>``."""
    room = LENGTH - 1
    count = len(tokens) // room
    body = tokens[: count * room].reshape(count, room).astype(np.uint16)
    return np.concatenate([np.full((count, 1), BOS, dtype=np.uint16), body], axis=1)


def make_rows(texts: list[np.ndarray], labels: list) -> Rows:
    """Return rows, given their tokens, and a label for each or an array of labels for each."""
    flat = np.concatenate(labels) if isinstance(labels[0], np.ndarray) else np.array(labels)
    lengths = np.array([len(text) for text in texts], dtype=np.uint16)
    return Rows(np.concatenate(texts).astype(np.uint16), lengths, flat.astype(np.float32))


def save(directory: Path, data: Data) -> None:
    """Write the data."""
    arrays = {"vocab_size": np.array(data.vocab_size), "train": data.train, "valid": data.valid}
    for task, name, rows in _sets(data.tasks):
        arrays |= {f"{task}/{name}/{part}": getattr(rows, part) for part in ("tokens", "lengths", "labels")}
    directory.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(directory / FILE, **arrays)


def load(directory: Path) -> Data:
    """Read what :func:`save` wrote."""
    with np.load(directory / FILE, allow_pickle=False) as file:
        tasks: dict[str, dict[str, Rows]] = {}
        for task, name, _ in (key.split("/") for key in file.files if key.endswith("/lengths")):
            parts = (file[f"{task}/{name}/{part}"] for part in ("tokens", "lengths", "labels"))
            tasks.setdefault(task, {})[name] = Rows(*parts)
        return Data(int(file["vocab_size"]), file["train"], file["valid"], tasks)


def smoke_data(vocab_size: int = 60) -> Data:
    """Return random data for a rehearsal, in which the first token of a text decides its label."""
    generator = np.random.default_rng(1)

    def rows(count: int, labels_words: bool, scores: bool) -> Rows:
        texts, labels = [], []
        for _ in range(count):
            text = np.array([BOS, *generator.integers(4, vocab_size - 1, generator.integers(3, 12)), EOS])
            of_tokens = np.where(text > UNK, text % 3, -1)
            texts.append(text)
            labels.append(of_tokens if labels_words else text[1] / vocab_size if scores else text[1] % 2)
        return make_rows(texts, labels)

    sizes = {"train": 128, "dev": 24, "test": 32}
    tasks = {
        task: {name: rows(size, task == "UPOS", task == "STS-B") for name, size in sizes.items()}
        for task in ("SST-2", "CoLA", "STS-B", "RTE", "UPOS")
    }
    stream = generator.integers(4, vocab_size - 1, 127 * 160)
    corpus = sequences(stream)
    return Data(vocab_size, corpus[:96], corpus[96:], tasks)


def _sets(tasks: dict[str, dict[str, Rows]]) -> Iterator[tuple[str, str, Rows]]:
    for task, of_task in tasks.items():
        for name, rows in of_task.items():
            yield task, name, rows
