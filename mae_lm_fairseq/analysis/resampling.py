"""Bootstrap intervals of ratios, such as accuracies, from resampling the sentences that they are counted in."""

import numpy as np

RESAMPLES = 1000
SEED = 1


def ratio_interval(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of ``above.sum() / below.sum()``; a ratio to zero is 0.

    Args:
        above, below: numbers counted in each sentence.
    """
    weights = np.random.default_rng(SEED).multinomial(len(below), np.full(len(below), 1 / len(below)), RESAMPLES)
    above, below = weights @ above, weights @ below
    ratios = np.divide(above, below, out=np.zeros(RESAMPLES), where=below > 0)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
