"""Patch of the metrics that fairseq computes in validation."""

from collections.abc import Callable

import numpy as np
from fairseq.criterions import sentence_prediction

from mae_lm_fairseq.fairseq_patches.patching import wrap


def define_every_correlation() -> None:
    """Report a correlation of 0 where it is undefined: for fewer than two rows, and for constant scores.

    fairseq computes it for each batch, too. SciPy refuses a batch of one row, which ended in a traceback. Constant
    predictions gave NaN, which is neither above nor below any value, so the best checkpoint was lost.
    """
    wrap(sentence_prediction, "pearson_and_spearman", _correlations)


def _correlations(compute: Callable, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    if len(true) < 2 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}
    return compute(predicted, true)
