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

Ratios = dict[str, tuple[np.ndarray, np.ndarray]]
"""Metrics by name, as numerators and denominators of each sentence, which are summed before the division."""


def ratios(labels: LabelSet, predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str | None]]) -> Ratios:
    """Return the metrics of predictions. Predicted entities with a word that has no label do not count.

    Args:
        labels: the labels that the model learnt; they tell whether there are entities.
        predicted, true: the labels of each sentence; None for words without a label.
    """
    pairs = [list(zip(*sentences, strict=True)) for sentences in zip(predicted, true, strict=True)]
    right = np.array([sum(ours == given for ours, given in sentence) for sentence in pairs])
    found = {"accuracy": (right, np.array([sum(given is not None for _, given in sentence) for sentence in pairs]))}
    if labels.scheme is None:
        return found
    ours = [
        {entity for entity in entities(sentence) if None not in given[entity.start : entity.end]}
        for sentence, given in zip(predicted, true, strict=True)
    ]
    theirs = [set(entities(label or OUTSIDE for label in sentence)) for sentence in true]
    of_all = _entity_ratios(ours, theirs)
    kinds = {*labels.kinds, *(entity.kind for side in theirs for entity in side)}
    by_type = {
        f"{kind}{SEPARATOR}{name}": ratio
        for kind in sorted(kinds)
        for name, ratio in _entity_ratios(ours, theirs, kind=kind).items()
    }
    return {**of_all, **found, **by_type}


def _entity_ratios(*sides: Sequence[set[Entity]], kind: str | None = None) -> Ratios:
    ours, theirs = ([{one for one in found if kind in (None, one.kind)} for found in side] for side in sides)
    right = np.array([len(found & given) for found, given in zip(ours, theirs, strict=True)])
    found, given = (np.array([len(each) for each in side]) for side in (ours, theirs))
    return {"precision": (right, found), "recall": (right, given), "f1": (2 * right, found + given)}


def values(found: Ratios) -> dict[str, float]:
    """Return the metrics in per cent; 0 where nothing was predicted or given."""
    sums = {name: [int(side.sum()) for side in ratio] for name, ratio in found.items()}
    return {name: 100 * above / below if below else 0.0 for name, (above, below) in sums.items()}


def with_intervals(found: Ratios) -> dict[str, dict[str, float]]:
    """Return ``value`` of each metric with ``low`` and ``high``, its 95 % interval from resampling sentences."""
    return {
        name: {"value": value, "low": 100 * low, "high": 100 * high}
        for name, value in values(found).items()
        for low, high in [ratio_interval(*found[name])]
    }
