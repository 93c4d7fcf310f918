"""Labels of words: those that a model learns from a training file, and the entities that they stand for.

In BIO, also called IOB2, labels are ``O`` outside of entities, ``B-TYPE`` at the first word of one, and ``I-TYPE`` at
its other words. Labels in IOB1, BIOES, BILOU and BMEWO are read as the entities that they mean, and predictions written
in BIO.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.text.word_files import WordFile
from mae_lm_fairseq.text.word_windows import IGNORED
from mae_lm_fairseq.utils.errors import UserError

BIO = "BIO"
"""Scheme of the labels of a model for entities, in results and bundles."""
OUTSIDE = "O"
_INSIDE = re.compile(r"[BIESLUMW]-.+")
_NEARLY_INSIDE = re.compile(r"[BIESLUMW][-_:.].+|.+[-_:.][BIESLUMW]", re.IGNORECASE)
"""Labels as of a scheme that is not read, such as ``B_PER``, ``b-per`` and ``PER-B``."""
_IN_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}
"""Prefixes of BIOES by those of BILOU and BMEWO."""


class Entity(NamedTuple):
    """An entity: its type, its first word, and the word after its last one."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class LabelSet:
    """The labels of a model.

    Attributes:
        names: in the order of their numbers.
        scheme: :data:`BIO` if they are of entities, otherwise None.
    """

    names: tuple[str, ...]
    scheme: str | None

    @property
    def kinds(self) -> list[str]:
        """The types of entities, sorted."""
        if self.scheme is None:
            return []
        return sorted({name.partition("-")[2] for name in self.names if name != OUTSIDE})

    def targets(self, file: WordFile) -> list[list[int]]:
        """Return the number of the label of each word of a file.

        Raises:
            UserError: if a label is not in this set, or no word has one.
        """
        self.check_known(file)
        numbers = {name: number for number, name in enumerate(self.names)} | {None: IGNORED}
        return [[numbers[label] for label in labels] for labels in file.labels]

    def check_known(self, file: WordFile) -> None:
        """Check that a file has labels, and only those of this set.

        Raises:
            UserError: otherwise.
        """
        if not file.kinds:
            raise UserError(f"{file.path}: has no labels in column {file.column + 1}; choose another --column")
        known = {*self.names, None}
        for sentence in file.sentences:
            for line, label in zip(sentence.lines, sentence.labels, strict=True):
                if label not in known:
                    raise UserError(
                        f"{file.path}: line {line}: the training file has no label {label!r:.80}; correct the label, "
                        "or add such words to the training file"
                    )

    def best(self, logits: np.ndarray) -> list[str]:
        """Return the labels with the highest logits, given [words, labels]."""
        return [self.names[number] for number in logits.argmax(1)]


def learn_labels(file: WordFile) -> LabelSet:
    """Return the labels of a training file, sorted.

    Raises:
        UserError: if they look like those of entities in a scheme that is not read, as words would be scored alone.
    """
    names = tuple(sorted(file.kinds))
    scheme = scheme_of(names)
    inside = [name for name in names if name.upper() != OUTSIDE]
    has_both = 0 < len(inside) < len(names)
    if scheme is None and has_both and all(map(_NEARLY_INSIDE.fullmatch, inside)):
        raise UserError(
            f"{file.path}: labels such as {inside[0]!r:.80} are of no scheme of entities that is read; write them in "
            "BIO, as B-TYPE and I-TYPE"
        )
    return LabelSet(names, scheme)


def scheme_of(names: Iterable[str]) -> str | None:
    """Return :data:`BIO` if all labels are of entities, otherwise None."""
    inside = {*names} - {OUTSIDE}
    return BIO if inside and all(map(_INSIDE.fullmatch, inside)) else None


def entities(labels: Iterable[str]) -> list[Entity]:
    """Return the entities that labels stand for; labels may be those of BIOES, BILOU and BMEWO.

    Invalid sequences are read as conlleval, the script of CoNLL's shared tasks, and seqeval do: a label that cannot
    continue the entity before it begins a new one.
    """
    entities = []
    before = (OUTSIDE, "")
    for position, label in enumerate(labels):
        prefix, _, kind = label.partition("-")
        prefix = _IN_BIOES.get(prefix, prefix)
        if prefix in ("I", "E") and before in (("B", kind), ("I", kind)):
            entities[-1] = entities[-1]._replace(end=position + 1)
        elif prefix != OUTSIDE:
            entities.append(Entity(kind, position, position + 1))
        before = (prefix, kind)
    return entities


def valid_bio(labels: Sequence[str]) -> list[str]:
    """Return the labels in BIO of the entities that labels stand for."""
    valid = [OUTSIDE] * len(labels)
    for kind, start, end in entities(labels):
        valid[start:end] = [f"I-{kind}"] * (end - start)
        valid[start] = f"B-{kind}"
    return valid
