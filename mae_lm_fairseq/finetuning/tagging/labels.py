"""The labels that a model learns from a training file, and those of other files in their terms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mae_lm_fairseq.finetuning.tagging.files import Sentence, WordFile
from mae_lm_fairseq.finetuning.tagging.schemes import OUTSIDE, Scheme, converted, known, scheme_of
from mae_lm_fairseq.finetuning.tagging.windows import IGNORED
from mae_lm_fairseq.utils.errors import UserError


@dataclass(frozen=True)
class LabelSet:
    """The labels of a model.

    Attributes:
        names: the labels in the order of their numbers.
        scheme: how they write entities; None if they do not.
    """

    names: tuple[str, ...]
    scheme: Scheme | None

    @property
    def kinds(self) -> list[str]:
        """The types of entities, sorted."""
        return sorted({name.partition("-")[2] for name in self.names if name != OUTSIDE}) if self.scheme else []

    def labels_in(self, file: WordFile) -> list[list[str | None]]:
        """Return the labels of a file's sentences, in this scheme.

        Raises:
            UserError: if labels of entities are invalid.
        """
        scheme = scheme_of(file)
        return [_in_scheme(sentence, self.scheme if scheme else None) for sentence in file.sentences]

    def targets(self, file: WordFile) -> list[list[int]]:
        """Return the number of the label of each word of a file.

        Raises:
            UserError: if labels of entities are invalid, or one is not in this set.
        """
        numbers = {name: number for number, name in enumerate(self.names)} | {None: IGNORED}
        labels = self.labels_in(file)
        for sentence, of_sentence in zip(file.sentences, labels, strict=True):
            for line, label in zip(sentence.lines, of_sentence, strict=True):
                if label not in numbers:
                    raise UserError(
                        f"{file.path}: line {line}: the training file has no label {label!r:.80}; correct the label, "
                        "or add such words to the training file"
                    )
        return [[numbers[label] for label in of_sentence] for of_sentence in labels]

    def best(self, logits: np.ndarray) -> list[str]:
        """Return the labels with the highest logits, given [words, labels]."""
        return [self.names[number] for number in logits.argmax(1)]

    def written(self, labels: Sequence[str], scheme: Scheme | None) -> list[str]:
        """Return predicted labels of a sentence in the scheme of a file; unchanged if either scheme is None."""
        return list(labels) if None in (scheme, self.scheme) else converted(labels, scheme)


def learn_labels(file: WordFile) -> LabelSet:
    """Return the labels of a training file, sorted.

    Raises:
        UserError: if labels of entities are invalid, or there are fewer than two labels.
    """
    scheme = scheme_of(file)
    learnt = scheme and scheme.learnt
    found = {label for sentence in file.sentences for label in _in_scheme(sentence, learnt)} - {None}
    if len(found) < 2:
        raise UserError(
            f"{file.path}: has only the label {found.pop()!r:.80}; training needs at least two different ones"
        )
    return LabelSet(tuple(sorted(found)), learnt)


def _in_scheme(sentence: Sentence, scheme: Scheme | None) -> list[str | None]:
    if scheme is None:
        return list(sentence.labels)
    labels = converted(known(sentence.labels), scheme)
    return [label if before is not None else None for label, before in zip(labels, sentence.labels, strict=True)]
