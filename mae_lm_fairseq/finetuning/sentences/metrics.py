"""Metrics of sentence tasks: functions (predictions, true values) -> value, both of shape [rows].

They are computed by scikit-learn and scipy, which are installed with fairseq.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np


def matthews(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the Matthews correlation of classes."""
    from sklearn.metrics import matthews_corrcoef  # takes seconds to import, as all of these do

    return matthews_corrcoef(true, predicted)


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """Return the fraction of the rows whose class is predicted."""
    return np.mean(predicted == true)


def f1(predicted: np.ndarray, true: np.ndarray, average: str = "binary") -> float:
    """Return the F1 of class 1 of two, or with ``macro`` the mean over the classes; 0 for one where it is undefined."""
    from sklearn.metrics import f1_score

    return f1_score(true, predicted, average=average, zero_division=0.0)


def correlation(predicted: np.ndarray, true: np.ndarray, function: str) -> float:
    """Return the correlation of scores by a function of ``scipy.stats``; 0 where it is undefined."""
    from scipy import stats

    if np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return 0.0  # the correlation with a constant is undefined
    return getattr(stats, function)(predicted, true).statistic


METRICS = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": partial(f1, average="macro"),
    "pearson": partial(correlation, function="pearsonr"),
    "spearman": partial(correlation, function="spearmanr"),
}
"""Metrics by name."""


def compute_metrics(names: Sequence[str], predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return metrics in per cent, given their names, and predictions and true values, both of shape [rows]."""
    return {name: 100 * float(METRICS[name](predicted, true)) for name in names}
