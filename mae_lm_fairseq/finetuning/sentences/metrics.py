"""Metrics of sentence tasks: functions (predictions, true values) -> value, both of shape [rows].

They are computed by scikit-learn and scipy, which are installed with fairseq.
"""

from collections.abc import Sequence

import numpy as np


def matthews(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the Matthews correlation of classes."""
    from sklearn.metrics import matthews_corrcoef  # takes seconds to import, as all of these do

    return matthews_corrcoef(true, predicted)


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the fraction of the rows whose class is predicted."""
    return np.mean(predicted == true)


def f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the F1 of class 1 of two; 0 where it is undefined."""
    from sklearn.metrics import f1_score

    return f1_score(true, predicted, zero_division=0.0)


def macro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the mean F1 of the classes; that of a class is 0 where it is undefined."""
    from sklearn.metrics import f1_score

    return f1_score(true, predicted, average="macro", zero_division=0.0)


def pearson(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the Pearson correlation of scores; 0 where it is undefined."""
    from scipy.stats import pearsonr

    if _is_constant(predicted) or _is_constant(true):
        return 0.0
    return pearsonr(predicted, true).statistic


def spearman(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the Spearman correlation of scores; 0 where it is undefined."""
    from scipy.stats import spearmanr

    if _is_constant(predicted) or _is_constant(true):
        return 0.0
    return spearmanr(predicted, true).statistic


def _is_constant(values: np.ndarray) -> bool:
    return np.ptp(values) == 0


METRICS = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "pearson": pearson,
    "spearman": spearman,
}
"""Metrics by name."""


def measure(names: Sequence[str], predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return metrics in per cent, given their names, and predictions and true values, both of shape [rows]."""
    return {name: 100 * float(METRICS[name](predicted, true)) for name in names}
