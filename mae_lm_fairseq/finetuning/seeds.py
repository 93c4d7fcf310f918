"""Statistics over the seeds of an experiment."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Values of one metric over several seeds.

    Attributes:
        median, mean: over the seeds.
        std: sample standard deviation (n - 1); None for a single seed.
        values: one value per seed, in seed order.
    """

    median: float
    mean: float
    std: float | None
    values: list[float]

    def __str__(self) -> str:
        spread = "one seed" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"
        return f"{self.median:.1f} ({spread})"


def summarise(values: Sequence[float]) -> Summary:
    """Return the median, mean and standard deviation of at least one value."""
    values = [float(value) for value in values]
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.median(values), statistics.fmean(values), std, values)


@dataclass(frozen=True)
class Difference:
    """Difference between two means.

    Attributes:
        mean: the difference.
        standard_error: its standard error; None if either side has a single seed.
        low, high: its 95 % confidence interval (Welch's); None if either side has a single seed.
    """

    mean: float
    standard_error: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.standard_error is None:
            return f"{self.mean:+.1f} (one seed)"
        verdict = ", within two standard errors" if abs(self.mean) <= 2 * self.standard_error else ""
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]{verdict}"


def difference(ours: Summary, theirs: Summary) -> Difference:
    """Return the mean of ``ours`` minus the mean of ``theirs``, with Welch's 95 % interval."""
    mean = ours.mean - theirs.mean
    if ours.std is None or theirs.std is None:
        return Difference(mean, None, None, None)
    from scipy.stats import t

    squares = [side.std**2 / len(side.values) for side in (ours, theirs)]
    error = math.sqrt(sum(squares))
    if error == 0:
        return Difference(mean, 0.0, mean, mean)
    sides = zip(squares, (ours, theirs), strict=True)
    freedom = sum(squares) ** 2 / sum(square**2 / (len(side.values) - 1) for square, side in sides)
    margin = float(t.ppf(0.975, freedom)) * error
    return Difference(mean, error, mean - margin, mean + margin)
