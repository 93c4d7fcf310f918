"""Metrics of the tasks in NumPy alone, as fractions: accuracy, Matthews' and Spearman's correlation."""

import numpy as np


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the fraction of equal classes."""
    return float(np.mean(predicted == true))


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation; 0 with a constant. Of two classes, it is Matthews' correlation."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else 0.0


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's correlation, with mean ranks for ties."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


METRICS = {"accuracy": accuracy, "matthews": pearson, "spearman": spearman}
