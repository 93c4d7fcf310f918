"""Bootstrap intervals of ratios, such as accuracies, from resampling the sentences that they are counted in."""

import numpy as np

RESAMPLES = 1000
SEED = 1
CHUNK = 1 << 22
"""Maximum number of weights in memory, of 8 bytes each."""


def ratio_interval(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of ``above.sum() / below.sum()``; a ratio to zero is 0.

    Args:
        above, below: numbers counted in each sentence.
    """
    generator, equal = np.random.default_rng(SEED), np.full(len(below), 1 / len(below))
    size = max(1, CHUNK // len(below))
    ratios = np.zeros(RESAMPLES)
    for start in range(0, RESAMPLES, size):
        weights = generator.multinomial(len(below), equal, min(size, RESAMPLES - start))
        counts = weights @ below
        np.divide(weights @ above, counts, out=ratios[start : start + size], where=counts > 0)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
