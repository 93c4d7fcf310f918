"""How many directions representations really use: four kinds of rank, from moments that are streamed.

A matrix of states ``[N, d]`` is never held. What is kept of it are the second moments ``[d, d]`` of its rows, in
float64, whose eigenvalues are the squared singular values of the matrix; how much text there is does not matter to
memory. They are kept apart for some chunks of the text, so that chunks can be drawn again: tokens of one text depend on
each other, chunks of many texts hardly do.
"""

from collections.abc import Iterator
from functools import cache
from math import sqrt

import numpy as np
import torch
from torch import Tensor

MEASURES = {
    "threshold": "smallest k whose k largest squared singular values hold a share of their sum (Meng et al., 2024)",
    "entropy": "exp of the entropy of the singular values divided by their sum (Roy and Vetterli, 2007)",
    "stable": "sum of the squared singular values divided by the largest of them",
    "numerical": "number of singular values above a millionth of the largest",
}
"""The kinds of rank, and what each is."""

NEGLIGIBLE = 1e-6
"""A singular value this small beside the largest is taken for rounding: states are float32, which holds 7 digits, and
eigenvalues of second moments, 16 digits of them, are squares."""


def effective_rank(states: Tensor, share: float = 0.9) -> int:
    """The threshold rank of the MAE-LM paper: how few directions hold ``share`` of the sum of squares.

    Args:
        states: ``[N, d]``, one state a row. They are not centred: the mean counts as a direction.
        share: of the sum of squares, in (0, 1].
    """
    return int(ranks(torch.linalg.svdvals(states.double()).square(), share)["threshold"])


def ranks(energies: Tensor, share: float = 0.9) -> dict[str, Tensor]:
    """The ranks of matrices from their singular values, by the names of :data:`MEASURES`; 0 for a matrix of zeros.

    Args:
        energies: ``[..., d]`` squared singular values in any order.
        share: of their sum, in (0, 1], that the threshold rank is to hold.

    Returns:
        ``[...]`` each, in float64.
    """
    energies = energies.double().clamp(min=0).sort(-1, descending=True).values
    energies = torch.where(energies > NEGLIGIBLE**2 * energies[..., :1], energies, 0.0)
    total, values = energies.sum(-1), energies.sqrt()
    exists = total > 0
    held = energies.cumsum(-1) / total.where(exists, 1.0)[..., None]
    portions = values / values.sum(-1).where(exists, 1.0)[..., None]
    # Rounding must not ask for one more direction than hold everything.
    found = {
        "threshold": (held < share - 1e-9).sum(-1).double() + 1,
        "entropy": torch.special.entr(portions).sum(-1).exp(),
        "stable": total / energies[..., 0].where(exists, 1.0),
        "numerical": (energies > 0).sum(-1).double(),
    }
    return {name: found[name].where(exists, 0.0) for name in MEASURES}


class SecondMoments:
    """Sums over the rows of a matrix that is seen in parts, apart for each chunk of the text that it comes from.

    Args:
        dim: columns of the matrix.
        chunks: how many chunks there are.
    """

    def __init__(self, dim: int, chunks: int = 1):
        self.counts = torch.zeros(chunks, dtype=torch.float64)
        self.sums = torch.zeros(chunks, dim, dtype=torch.float64)
        self.products = torch.zeros(chunks, dim, dim, dtype=torch.float64)

    def add(self, states: Tensor, chunk: int = 0) -> None:
        """Take in rows ``[N, dim]`` of a chunk."""
        states = states.double()
        self.counts[chunk] += len(states)
        self.sums[chunk] += states.sum(0).cpu()
        self.products[chunk] += (states.T @ states).cpu()

    @property
    def count(self) -> int:
        """Rows seen in all."""
        return int(self.counts.sum())

    def matrices(self, weights: Tensor, centred: bool = False) -> Iterator[Tensor]:
        """``[dim, dim]`` for each row of weights: the second moments of the text in which a chunk stands that often.

        Args:
            weights: ``[R, chunks]``, see :func:`resamples`.
            centred: around the mean of that text instead of zero.
        """
        for weight in weights.double():
            product = torch.tensordot(weight, self.products, 1)
            if centred:
                total = weight @ self.sums
                product = product - torch.outer(total, total) / (weight @ self.counts).clamp(min=1)
            yield product

    def energies(self, weights: Tensor | None = None, centred: bool = False) -> Tensor:
        """``[R, dim]`` squared singular values, of the whole text and of each resample; ``[1, dim]`` without any."""
        weights = torch.ones(1, len(self.counts)) if weights is None else weights
        scales = weights.double() @ self.products.diagonal(dim1=1, dim2=2).sum(1)
        energies = torch.stack([torch.linalg.eigvalsh(matrix) for matrix in self.matrices(weights, centred)])
        # What is left where centring took everything away is rounding.
        return torch.where(energies > NEGLIGIBLE**2 * scales[:, None], energies, 0.0)


def resamples(chunks: int, replicates: int, seed: int) -> Tensor:
    """``[1 + replicates, chunks]``: how often each chunk stands in the whole text (once), and in each resample of it.

    The same resamples serve everything that was measured on a text, so that differences can be taken one by one.
    """
    drawn = np.random.default_rng(seed).multinomial(chunks, [1 / chunks] * chunks, size=replicates)
    return torch.cat([torch.ones(1, chunks), torch.from_numpy(drawn)]).double()


def interval(values: Tensor, chunks: int) -> tuple[float, float]:
    """The 95 % interval of a statistic from its value on the whole text and on each resample, ``[1 + replicates]``.

    The value plus and minus as many bootstrap standard deviations, which are widened for the number of chunks, as
    Student's distribution says. Not the percentiles: a resample has fewer different texts than the whole, which pulls
    all of them down.
    """
    spread = deviations(chunks) * float(values[1:].std()) * sqrt(chunks / (chunks - 1))
    return float(values[0]) - spread, float(values[0]) + spread


@cache
def deviations(chunks: int, intervals: int = 1) -> float:
    """How many standard deviations of a mean of chunks reach to the ends of intervals that hold together by 95 %."""
    from scipy.stats import t

    return float(t.ppf(1 - 0.025 / intervals, chunks - 1))


def subspace(matrix: Tensor, share: float = 0.9) -> Tensor:
    """The fewest directions that hold ``share`` of second moments ``[d, d]``, as an orthonormal basis ``[d, k]``."""
    energies, directions = torch.linalg.eigh(matrix)
    count = int(ranks(energies, share)["threshold"])
    return directions.flip(1)[:, :count]


def share_outside(matrix: Tensor, basis: Tensor) -> float:
    """The share of second moments ``[d, d]`` that lies outside of a subspace with an orthonormal basis ``[d, k]``."""
    return float(1 - (basis * (matrix @ basis)).sum() / matrix.trace())


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """The angles between two subspaces in degrees, ascending, from orthonormal bases ``[d, k]`` and ``[d, m]``.

    As many as the smaller one has dimensions. Angles below a millionth of a degree or so come out as rounding.
    """
    cosines = torch.linalg.svdvals(first.T @ second).clamp(max=1)
    return torch.rad2deg(torch.acos(cosines))
