"""Effective rank of representations: four measures, computed from streamed second moments.

A matrix of hidden states ``[N, d]`` is never stored. Only the second moments ``[d, d]`` of its rows are kept, in
float64; their eigenvalues are the squared singular values of the matrix. Memory is therefore independent of the amount
of text. Separate moments are kept for several chunks of the text, for a bootstrap over chunks: tokens of one text
depend on each other, chunks of many texts hardly do.
"""

from collections.abc import Iterator
from functools import cache
from math import sqrt

import numpy as np
import torch
from torch import Tensor

RANKS = {
    "threshold": "smallest k whose k largest squared singular values hold a fraction of their sum (Meng et al., 2024)",
    "entropy": "exp of the entropy of the singular values divided by their sum (Roy and Vetterli, 2007)",
    "stable": "sum of the squared singular values divided by the largest of them",
    "numerical": "number of singular values above a millionth of the largest",
}

NEGLIGIBLE = 1e-6
"""Singular values below this fraction of the largest are treated as rounding errors. Hidden states are float32 with 7
digits; eigenvalues of second moments have 16 digits, but are squares."""


def ranks(energies: Tensor, fraction: float = 0.9) -> dict[str, Tensor]:
    """Compute the ranks of matrices from their singular values, by the names of :data:`RANKS`; 0 for a zero matrix.

    Args:
        energies: ``[..., d]`` squared singular values in any order.
        fraction: fraction of their sum for the threshold rank, in (0, 1].

    Returns:
        ``[...]`` for each measure, in float64.
    """
    energies = energies.double().clamp(min=0)
    energies = energies.sort(-1, descending=True).values
    least = NEGLIGIBLE**2 * energies[..., :1]
    energies = torch.where(energies > least, energies, 0.0)
    total = energies.sum(-1)
    is_nonzero = total > 0

    def divided(values: Tensor, sums: Tensor) -> Tensor:
        return values / sums.where(is_nonzero, 1.0)[..., None]

    singular_values = energies.sqrt()
    normalised = divided(singular_values, singular_values.sum(-1))
    cumulative = divided(energies.cumsum(-1), total)
    # The tolerance keeps rounding errors from adding a direction when all of them are required.
    is_needed = cumulative < fraction - 1e-9
    ranks_by_name = {
        "threshold": is_needed.sum(-1).double() + 1,
        "entropy": torch.special.entr(normalised).sum(-1).exp(),
        "stable": total / energies[..., 0].where(is_nonzero, 1.0),
        "numerical": (energies > 0).sum(-1).double(),
    }
    return {name: values.where(is_nonzero, 0.0) for name, values in ranks_by_name.items()}


class SecondMoments:
    """Second moments of the rows of a matrix, accumulated in batches and separately for each chunk of the text."""

    def __init__(self, dim: int, chunks: int = 1):
        self.counts = torch.zeros(chunks, dtype=torch.float64)
        self.sums = torch.zeros(chunks, dim, dtype=torch.float64)
        self.products = torch.zeros(chunks, dim, dim, dtype=torch.float64)

    def add(self, states: Tensor, chunk: int = 0) -> None:
        """Add rows ``[N, dim]`` of a chunk."""
        states = states.double()
        self.counts[chunk] += len(states)
        self.sums[chunk] += states.sum(0).cpu()
        self.products[chunk] += (states.T @ states).cpu()

    @property
    def count(self) -> int:
        """Total number of rows."""
        return int(self.counts.sum())

    def matrices(self, weights: Tensor, centred: bool = False) -> Iterator[Tensor]:
        """Yield the second moments ``[dim, dim]`` of the text, with chunks repeated as given by each row of weights.

        Args:
            weights: ``[R, chunks]``, see :func:`resamples`.
            centred: around the mean of the resampled text instead of zero.
        """
        for weight in weights.double():
            product = torch.tensordot(weight, self.products, 1)
            if centred:
                total = weight @ self.sums
                count = (weight @ self.counts).clamp(min=1)
                product = product - torch.outer(total, total) / count
            yield product

    def energies(self, weights: Tensor | None = None, centred: bool = False) -> Tensor:
        """Return squared singular values ``[R, dim]`` for ``[R, chunks]`` weights; by default of all text, ``[1,
        dim]``."""
        if weights is None:
            weights = torch.ones(1, len(self.counts))
        traces = self.products.diagonal(dim1=1, dim2=2).sum(1)
        scales = weights.double() @ traces
        matrices = self.matrices(weights, centred)
        energies = torch.stack([torch.linalg.eigvalsh(matrix) for matrix in matrices])
        # Where centring removes everything, the remainder is rounding error.
        least = NEGLIGIBLE**2 * scales
        return torch.where(energies > least[:, None], energies, 0.0)


def ignore_moments(layer: int, name: str, moments: SecondMoments) -> None:
    """Keep nothing of the moments of a layer."""


def resamples(chunks: int, replicates: int, seed: int) -> Tensor:
    """Return how often each chunk occurs in the text itself (once), and in each resample: ``[1 + replicates, chunks]``.

    All measurements on a text use the same resamples, so that differences can be computed per resample.
    """
    generator = np.random.default_rng(seed)
    equal = np.full(chunks, 1 / chunks)
    drawn = generator.multinomial(chunks, equal, size=replicates)
    itself = torch.ones(1, chunks)
    return torch.cat([itself, torch.from_numpy(drawn)]).double()


def interval(values: Tensor, chunks: int) -> tuple[float, float]:
    """Return the 95 % interval of a statistic.

    ``values`` has its value on the full text and on each resample, ``[1 + replicates]``.

    The interval is symmetric: bootstrap standard deviations times the quantile of Student's distribution for the number
    of chunks. Percentiles are not used, because a resample has fewer distinct texts than the full text, which biases
    all of them downwards.
    """
    value = float(values[0])
    deviation = float(values[1:].std())
    correction = sqrt(chunks / (chunks - 1))
    spread = deviations(chunks) * deviation * correction
    return value - spread, value + spread


@cache
def deviations(chunks: int) -> float:
    """Return the half-width of a 95 % interval in standard deviations."""
    from scipy.stats import t

    return float(t.ppf(0.975, chunks - 1))


def subspace(matrix: Tensor, fraction: float = 0.9) -> Tensor:
    """Return an orthonormal basis ``[d, k]`` of the fewest directions that hold ``fraction`` of moments ``[d, d]``."""
    energies, directions = torch.linalg.eigh(matrix)
    count = int(ranks(energies, fraction)["threshold"])
    return directions.flip(1)[:, :count]


def fraction_outside(matrix: Tensor, basis: Tensor) -> float:
    """Return the fraction of second moments ``[d, d]`` outside a subspace with orthonormal basis ``[d, k]``.

    It is 0 for a zero matrix.
    """
    total = matrix.trace()
    if not total:
        return 0.0
    inside = (basis * (matrix @ basis)).sum()
    return float(1 - inside / total)


RESAMPLES = 1000
BOOTSTRAP_SEED = 1


def ratio_interval(above: np.ndarray, below: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of ``above.sum() / below.sum()``, counted in each sentence; a ratio to zero is 0."""
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    equal = np.full(len(below), 1 / len(below))
    ratios = []
    for _ in range(RESAMPLES):
        weights = generator.multinomial(len(below), equal)
        count = weights @ below
        ratios.append(weights @ above / count if count else 0.0)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
