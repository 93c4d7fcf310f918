"""Metrics of sentence tasks: functions (predictions, true values) -> value, both of shape [rows].

They are computed by scikit-learn and scipy, which are installed with fairseq.
"""

from collections.abc import Callable, Sequence

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

    return _correlation(pearsonr, predicted, true)


def spearman(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the Spearman correlation of scores; 0 where it is undefined."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predicted, true)


def _correlation(function: Callable, predicted: np.ndarray, true: np.ndarray) -> float:
    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return 0.0  # the correlation with a constant is undefined
    return function(predicted, true).statistic


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
