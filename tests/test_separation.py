"""The decision rule of scripts/results/separation."""

import pytest

from experiments.separation import verdict


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.05, -0.1, 0.02, 0.1, -0.05], "harmless"),
        ([-0.12, -0.08, -0.1, -0.11, -0.09], "harmless"),  # significant, and too small to matter
        ([-0.6, -0.5, -0.9, -1.7, -1.0], "the paper's mechanism"),
        ([0.6, 0.5, 0.9, 1.7, 1.0], "contradicted"),
        ([-0.6, 0.5, -0.9, 1.7, 0.2], "cannot tell"),
    ],
)
def test_the_rule_has_four_results(differences, expected):
    assert verdict(differences) == expected
