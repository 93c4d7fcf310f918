"""Schemes that write entities as one label per word: BIO (also called IOB2), IOB1 and BIOES.

Labels are ``O`` outside of entities and ``PREFIX-TYPE`` inside. In BIO every entity begins with ``B-``; in IOB1 only
one that follows another of its type does; in BIOES entities end with ``E-``, and those of one word are ``S-``.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from mae_lm_fairseq.finetuning.tagging.files import WordFile
from mae_lm_fairseq.utils.errors import UserError

OUTSIDE = "O"
_INSIDE = re.compile(r"[BIES]-.+")


class Scheme(Enum):
    """A scheme; the most common one first."""

    BIO = "BIO"
    IOB1 = "IOB1"
    BIOES = "BIOES"

    @property
    def learnt(self) -> "Scheme":
        """The scheme that a model learns from files in this one: BIO for IOB1, whose labels depend on those before."""
        return Scheme.BIO if self is Scheme.IOB1 else self


class Entity(NamedTuple):
    """An entity: its type, its first word, and the word after its last one."""

    kind: str
    start: int
    end: int


def entities(labels: Iterable[str]) -> list[Entity]:
    """Return the entities that labels of any scheme stand for.

    Invalid sequences are read as conlleval, the script of CoNLL's shared tasks, and seqeval do: a label that cannot
    continue the entity before it begins a new one.
    """
    found, before = [], (OUTSIDE, "")
    for position, label in enumerate(labels):
        prefix, _, kind = label.partition("-")
        if prefix in ("I", "E") and before in (("B", kind), ("I", kind)):
            found[-1] = found[-1]._replace(end=position + 1)
        elif prefix != OUTSIDE:
            found.append(Entity(kind, position, position + 1))
        before = (prefix, kind)
    return found


def labels_of(found: Iterable[Entity], length: int, scheme: Scheme) -> list[str]:
    """Return the labels of a sentence of ``length`` words with these entities."""
    labels = [OUTSIDE] * length
    for entity in found:
        for position in range(entity.start, entity.end):
            follows_its_type = labels[entity.start - 1][2:] == entity.kind if entity.start else False
            labels[position] = f"{_prefix(entity, position, scheme, follows_its_type)}-{entity.kind}"
    return labels


def _prefix(entity: Entity, position: int, scheme: Scheme, follows_its_type: bool) -> str:
    is_first, is_last = position == entity.start, position == entity.end - 1
    if scheme is Scheme.BIOES and is_last:
        return "S" if is_first else "E"
    return "B" if is_first and (scheme is not Scheme.IOB1 or follows_its_type) else "I"


def converted(labels: Sequence[str], scheme: Scheme) -> list[str]:
    """Return the labels of the same entities in another scheme."""
    return labels_of(entities(labels), len(labels), scheme)


def scheme_of(file: WordFile) -> Scheme | None:
    """Return the scheme of a file's labels, the one with the fewest invalid labels; None if they are not of entities.

    Raises:
        UserError: if a label is not ``O`` or ``PREFIX-TYPE`` although others are, or is invalid in its sentence.
    """
    kinds = {label for sentence in file.sentences for label in sentence.labels if label is not None}
    inside = {label for label in kinds if _INSIDE.fullmatch(label)}
    if not inside or not (OUTSIDE in kinds or inside == kinds):
        return None
    for sentence in file.sentences:
        for line, label in zip(sentence.lines, sentence.labels, strict=True):
            if label is not None and label != OUTSIDE and label not in inside:
                raise UserError(
                    f"{file.path}: line {line}: the label {label!r:.80} is neither O nor B-TYPE, I-TYPE, E-TYPE or "
                    "S-TYPE, as others are; correct it"
                )
    wrong = {scheme: _invalid(file, scheme) for scheme in Scheme}
    scheme = min(Scheme, key=lambda each: len(wrong[each]))
    if wrong[scheme]:
        line, label, right = wrong[scheme][0]
        raise UserError(
            f"{file.path}: line {line}: {label!r:.80} breaks the scheme {scheme.value}, in which {right!r:.80} would "
            "be valid; correct it"
        )
    return scheme


def _invalid(file: WordFile, scheme: Scheme) -> list[tuple[int, str, str]]:
    """Return (line, label, valid label) where a file differs from how a scheme writes its entities."""
    return [
        (line, label, valid)
        for sentence in file.sentences
        for line, label, valid in zip(
            sentence.lines, known(sentence.labels), converted(known(sentence.labels), scheme), strict=True
        )
        if label != valid
    ]


def known(labels: Iterable[str | None]) -> list[str]:
    """Return labels of entities, with ``O`` for words without a label."""
    return [label or OUTSIDE for label in labels]
