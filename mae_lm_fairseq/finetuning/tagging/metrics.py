"""Metrics of labelled words: accuracy; precision, recall and F1 of entities, over all types and by type.

They are those of conlleval and of seqeval's default mode. seqeval itself, last released in 2020, is what the tests
compare with: evaluation needs only the counts below, and no further package.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.statistics.effective_rank import ratio_interval
from mae_lm_fairseq.text.word_labels import OUTSIDE, Entity, LabelSet, entities

SEPARATOR = ": "
"""Between a type of entities and the name of its metric."""


class Ratio(NamedTuple):
    """A metric: the sum of the numerators of all sentences by that of the denominators."""

    numerators: np.ndarray
    denominators: np.ndarray


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

    predicted_entities = list(map(_scored_entities, predicted, true))
    true_entities = []
    for labels_of_sentence in true:
        true_entities.append(set(entities(label or OUTSIDE for label in labels_of_sentence)))

    by_name = _entity_ratios(predicted_entities, true_entities)
    by_name["accuracy"] = accuracy
    kinds = set(labels.kinds)
    for sentence in true_entities:
        kinds.update(entity.kind for entity in sentence)
    for kind in sorted(kinds):
        of_kind = _entity_ratios(_select(predicted_entities, kind), _select(true_entities, kind))
        for name, ratio in of_kind.items():
            by_name[f"{kind}{SEPARATOR}{name}"] = ratio
    return by_name


def _scored_entities(predicted: Sequence[str], true: Sequence[str | None]) -> set[Entity]:
    """Return the predicted entities of a sentence, without those with a word that has no label."""
    scored = set()
    for entity in entities(predicted):
        if None not in true[entity.start : entity.end]:
            scored.add(entity)
    return scored


def _accuracy_ratio(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str | None]]) -> Ratio:
    correct = []
    labelled = []
    for predicted_labels, true_labels in zip(predicted, true, strict=True):
        pairs = zip(predicted_labels, true_labels, strict=True)
        correct.append(sum(label == true_label for label, true_label in pairs))
        labelled.append(len(true_labels) - true_labels.count(None))
    return Ratio(np.array(correct), np.array(labelled))


def _entity_ratios(predicted: Sequence[set[Entity]], true: Sequence[set[Entity]]) -> Ratios:
    """Return the metrics of entities, given those of each sentence."""
    pairs = zip(predicted, true, strict=True)
    correct = np.array([len(predicted_set & true_set) for predicted_set, true_set in pairs])
    positives = np.array(list(map(len, predicted)))
    expected = np.array(list(map(len, true)))
    return {
        "precision": Ratio(correct, positives),
        "recall": Ratio(correct, expected),
        "f1": Ratio(2 * correct, positives + expected),
    }


def _select(sentences: Sequence[set[Entity]], kind: str) -> list[set[Entity]]:
    """Return the entities of a type, given those of each sentence."""
    selected = []
    for sentence in sentences:
        selected.append({entity for entity in sentence if entity.kind == kind})
    return selected


def in_per_cent(by_name: Ratios) -> dict[str, float]:
    """Return the metrics in per cent; 0 where nothing was predicted or given."""
    metrics = {}
    for name, ratio in by_name.items():
        numerator = int(ratio.numerators.sum())
        denominator = int(ratio.denominators.sum())
        metrics[name] = 100 * numerator / denominator if denominator else 0.0
    return metrics


def with_intervals(by_name: Ratios) -> dict[str, dict[str, float]]:
    """Return ``value`` of each metric with ``low`` and ``high``, its 95 % interval from resampling sentences."""
    metrics = {}
    for name, value in in_per_cent(by_name).items():
        low, high = ratio_interval(*by_name[name])
        metrics[name] = {"value": value, "low": 100 * low, "high": 100 * high}
    return metrics
