"""Endpoints: what contrasts compare, as functions of the measured values of all seeds of a model.

To add an endpoint, write a function here that takes a :class:`ValueBySeed` and returns one number per seed. Its
docstring is its description for users.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

SECOND_LAYER = 2
"""Layer 0 are the embeddings."""


@dataclass(frozen=True)
class ValueBySeed:
    """One value of a measure, for all seeds of a model.

    Args:
        runs: the results of the measure by number of updates, for each seed.
        name: the value; the measure may have others.
    """

    runs: Sequence[Mapping[int, Mapping[str, Any]]]
    name: str

    @property
    def checkpoints(self) -> list[int]:
        """Numbers of updates after which all seeds were measured, ascending."""
        return sorted(set.intersection(*(set(run) for run in self.runs)))

    def at(self, updates: int) -> np.ndarray:
        """Return the value after a number of updates: float[seeds], or float[seeds, layers] of a value by layer."""
        return np.array([run[updates][self.name] for run in self.runs], dtype=float)

    @property
    def is_measured(self) -> bool:
        """Whether there are seeds, and all have the value after the last update."""
        if not self.runs:
            return False
        last = self.checkpoints[-1]
        return all(self.name in run[last] for run in self.runs)

    def final(self) -> np.ndarray:
        """Return the value after the last update, see :meth:`at`."""
        return self.at(self.checkpoints[-1])


def last(value: ValueBySeed) -> np.ndarray:
    """Value after the last update, at the last layer."""
    return last_layer(value.final())


def last_less_first_layer(value: ValueBySeed) -> np.ndarray:
    """Last layer less the embeddings: what the layers add from the context."""
    final = value.final()
    return final[:, -1] - final[:, 0]


def last_less_best_layer(value: ValueBySeed) -> np.ndarray:
    """Last layer less the best layer below it; dev_NAME, if measured, chooses that layer by its mean over the seeds."""
    final = value.final()
    dev = replace(value, name=f"dev_{value.name}")
    chosen_by = dev.final() if dev.is_measured else final
    means_below = chosen_by.mean(0)[:-1]
    best = np.nan_to_num(means_below, nan=-np.inf).argmax()
    return final[:, -1] - final[:, best]


def mean_of_layers(value: ValueBySeed) -> np.ndarray:
    """Mean over the layers from the second one to the last."""
    return np.nanmean(value.final()[:, SECOND_LAYER:], axis=1)


def end_less_best_checkpoint(value: ValueBySeed) -> np.ndarray:
    """Last layer after the last update less that of the best checkpoint: below 0 if training damages it."""
    by_checkpoint = [last_layer(value.at(updates)) for updates in value.checkpoints]
    best = max(by_checkpoint, key=lambda of_seeds: np.nan_to_num(of_seeds.mean(), nan=-np.inf))
    return by_checkpoint[-1] - best


def last_layer(values: np.ndarray) -> np.ndarray:
    """Return the last layer of a value by layer, and other values as they are: float[seeds]."""
    return values if values.ndim == 1 else values[:, -1]


OF_LAYERS = ("last_less_first_layer", "last_less_best_layer", "mean_of_layers")
"""Endpoints of values by layer only."""
OVER_TIME = ("end_less_best_checkpoint",)
"""Endpoints that compare checkpoints."""
ENDPOINTS: dict[str, Callable[[ValueBySeed], np.ndarray]] = {
    function.__name__: function
    for function in (last, last_less_first_layer, last_less_best_layer, mean_of_layers, end_less_best_checkpoint)
}
