"""Effective ranks of matrices with known ranks, and streamed moments against a full decomposition."""

import math

import numpy as np
import pytest
import torch

from mae_lm_fairseq.statistics.effective_rank import (
    RANKS,
    SecondMoments,
    fraction_outside,
    interval,
    ranks,
    resamples,
    subspace,
)


def matrix(singular_values, rows=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = len(singular_values)
    left, _ = torch.linalg.qr(torch.randn(rows, size, dtype=torch.float64, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    return left @ torch.diag(torch.tensor(singular_values, dtype=torch.float64)) @ right


def energies(states, centred):
    """Return the squared singular values of a matrix, by a full decomposition."""
    states = states.double()
    return torch.linalg.svdvals(states - states.mean(0) if centred else states).square()


def threshold_rank(states, fraction=0.9):
    moments = SecondMoments(states.size(1))
    moments.add(states)
    return ranks(moments.energies(), fraction)["threshold"].item()


@pytest.mark.parametrize(
    ("singular_values", "fraction", "expected"),
    [
        ([1.0] * 10, 0.9, 9),  # each value contributes a tenth
        ([1.0] * 10, 0.91, 10),
        ([1.0] * 10, 1.0, 10),
        ([3.0, 1.0, 0.0], 0.9, 1),  # 9 of 10
        ([3.0, 1.0, 0.0], 0.95, 2),
        ([2.0, 2.0, 1.0, 0.1], 0.8, 2),  # 8 of 9.01
        ([1.0, 0.0, 0.0], 1.0, 1),
    ],
)
def test_known_singular_values(singular_values, fraction, expected):
    states = matrix(singular_values)
    for scale in (1, 1000):
        assert threshold_rank(scale * states, fraction) == expected


def test_the_mean_counts_as_a_direction():
    assert threshold_rank(torch.ones(20, 4)) == 1


def test_every_measure_of_a_known_spectrum():
    found = ranks(torch.tensor([[4.0, 1.0, 1.0, 0.0], [0.0, 0.0, 9.0, 0.0], [0.0] * 4]).double())
    assert list(found) == list(RANKS)
    assert found["threshold"].tolist() == [3, 1, 0]
    assert found["numerical"].tolist() == [3, 1, 0]
    assert found["stable"].tolist() == [1.5, 1, 0]
    # Singular values 2, 1, 1 are fractions 1/2, 1/4, 1/4.
    assert found["entropy"].tolist() == pytest.approx([math.exp(1.5 * math.log(2)), 1, 0], abs=1e-12)


@pytest.mark.parametrize("centred", [False, True])
def test_streamed_moments_agree_with_a_full_decomposition(centred):
    """float32 states added in chunks also agree; their sums are exact to 1e-12 in float64."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(700, 12, generator=generator) @ torch.randn(12, 40, generator=generator) + 3
    moments = SecondMoments(40, chunks=5)
    for number, part in enumerate(states.split(37)):
        moments.add(part, chunk=number % 5)
    expected = energies(states, centred)
    found = moments.energies(centred=centred)[0].sort(descending=True).values
    torch.testing.assert_close(found[:12], expected[:12], rtol=1e-10, atol=0)
    assert moments.count == 700
    for name, value in ranks(expected).items():
        assert float(ranks(found)[name]) == pytest.approx(float(value), rel=1e-6)
    assert ranks(found)["numerical"] == 12 + (not centred)  # the mean adds one


def test_centred_constant_has_rank_zero():
    moments = SecondMoments(6, chunks=2)
    for chunk in (0, 1):
        moments.add(torch.full((999, 6), 0.1234567), chunk)
    assert ranks(moments.energies(centred=True))["numerical"].tolist() == [0]


def test_a_resample_is_the_text_with_chunks_repeated():
    generator = torch.Generator().manual_seed(2)
    chunks = [torch.randn(30, 6, generator=generator) * (k + 1) for k in range(4)]
    moments = SecondMoments(6, chunks=4)
    for number, chunk in enumerate(chunks):
        moments.add(chunk, number)
    weights = torch.tensor([[1, 1, 1, 1], [0, 3, 1, 0]])
    for centred in (False, True):
        found = moments.energies(weights, centred)
        for row, repeated in zip(found, (chunks, [chunks[1]] * 3 + [chunks[2]]), strict=True):
            expected = energies(torch.cat(repeated), centred)
            torch.testing.assert_close(row.sort(descending=True).values, expected, rtol=1e-10, atol=1e-10)


def test_resamples_start_with_the_original_and_depend_on_the_seed():
    drawn = resamples(20, 300, seed=3)
    assert drawn.shape == (301, 20)
    assert torch.equal(drawn[0], torch.ones(20).double())
    assert torch.equal(drawn.sum(1), torch.full((301,), 20.0).double())
    assert torch.equal(drawn, resamples(20, 300, seed=3))
    assert not torch.equal(drawn, resamples(20, 300, seed=4))


def test_confidence_intervals_have_their_nominal_coverage():
    """95 % intervals of a mean of 0 cover it in 95 % of 300 trials (within three standard deviations), for few and many
    chunks.
    """
    generator = np.random.default_rng(5)
    for count in (3, 20):
        covered = 0
        for trial in range(300):
            chunks = torch.from_numpy(generator.normal(size=count))
            low, high = interval(resamples(count, 200, trial) @ chunks / count, count)
            covered += low <= 0 <= high
        assert abs(covered / 300 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 300), count


def test_subspaces():
    basis = torch.eye(5).double()
    matrix = basis[:, :2] @ torch.diag(torch.tensor([4.0, 5.0]).double()) @ basis[:, :2].T + 1e-3 * torch.eye(5)
    found = subspace(matrix)
    assert found.shape == (5, 2)
    assert fraction_outside(matrix, found) == pytest.approx(3e-3 / 9.005)
    assert fraction_outside(basis, found) == pytest.approx(3 / 5)
    assert fraction_outside(torch.zeros_like(basis), found) == 0
