"""Metrics of labelled words: accuracy; precision, recall and F1 of entities, over all types and by type.

They are those of conlleval and of seqeval's default mode. seqeval itself, last released in 2020, is what the tests
compare with: evaluation needs only the counts below, and no further package.
"""

from collections.abc import Sequence

import numpy as np

from mae_lm_fairseq.statistics.effective_rank import ratio_interval
from mae_lm_fairseq.text.word_labels import OUTSIDE, Entity, LabelSet, entities

SEPARATOR = ": "
"""Between a type of entities and the name of its metric."""

Ratio = tuple[np.ndarray, np.ndarray]
"""A metric, as numerators and denominators of each sentence, which are summed before the division."""
Ratios = dict[str, Ratio]
"""Metrics by name."""


def ratios(labels: LabelSet, predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str | None]]) -> Ratios:
    """Return the metrics of predictions. Predicted entities with a word that has no label do not count.

    Args:
        labels: the labels that the model learnt; they tell whether there are entities.
        predicted, true: the labels of each sentence; None for words without a label.
    """
    accuracy = _accuracy_ratio(predicted, true)
    if labels.scheme is None:
        return {"accuracy": accuracy}
    ours, theirs = [], []
    for our_labels, their_labels in zip(predicted, true, strict=True):
        labelled = set()
        for entity in entities(our_labels):
            if None not in their_labels[entity.start : entity.end]:
                labelled.add(entity)
        ours.append(labelled)
        theirs.append(set(entities(label or OUTSIDE for label in their_labels)))
    by_name = {**_entity_ratios(ours, theirs), "accuracy": accuracy}
    kinds = set(labels.kinds).union(entity.kind for expected in theirs for entity in expected)
    for kind in sorted(kinds):
        for name, ratio in _entity_ratios(ours, theirs, kind).items():
            by_name[f"{kind}{SEPARATOR}{name}"] = ratio
    return by_name


def _accuracy_ratio(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str | None]]) -> Ratio:
    right, labelled = [], []
    for our_labels, their_labels in zip(predicted, true, strict=True):
        pairs = zip(our_labels, their_labels, strict=True)
        right.append(sum(ours == theirs for ours, theirs in pairs))
        labelled.append(sum(label is not None for label in their_labels))
    return np.array(right), np.array(labelled)


def _entity_ratios(ours: Sequence[set[Entity]], theirs: Sequence[set[Entity]], kind: str | None = None) -> Ratios:
    right, predicted, expected = [], [], []
    for our_entities, their_entities in zip(ours, theirs, strict=True):
        if kind is not None:
            our_entities = {entity for entity in our_entities if entity.kind == kind}
            their_entities = {entity for entity in their_entities if entity.kind == kind}
        right.append(len(our_entities & their_entities))
        predicted.append(len(our_entities))
        expected.append(len(their_entities))
    right, predicted, expected = map(np.array, (right, predicted, expected))
    f1 = (2 * right, predicted + expected)
    return {"precision": (right, predicted), "recall": (right, expected), "f1": f1}


def values(by_name: Ratios) -> dict[str, float]:
    """Return the metrics in per cent; 0 where nothing was predicted or given."""
    in_per_cent = {}
    for name, (numerators, denominators) in by_name.items():
        above, below = int(numerators.sum()), int(denominators.sum())
        in_per_cent[name] = 100 * above / below if below else 0.0
    return in_per_cent


def with_intervals(by_name: Ratios) -> dict[str, dict[str, float]]:
    """Return ``value`` of each metric with ``low`` and ``high``, its 95 % interval from resampling sentences."""
    metrics = {}
    for name, value in values(by_name).items():
        low, high = ratio_interval(*by_name[name])
        metrics[name] = {"value": value, "low": 100 * low, "high": 100 * high}
    return metrics
