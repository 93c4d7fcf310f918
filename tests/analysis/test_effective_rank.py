import pytest
import torch

from mae_lm_fairseq.analysis.effective_rank import effective_rank


@pytest.mark.parametrize(
    ("singular_values", "share", "expected"),
    [
        ([1.0] * 10, 0.9, 9),  # each holds a tenth
        ([1.0] * 10, 0.91, 10),
        ([1.0] * 10, 1.0, 10),
        ([3.0, 1.0, 0.0], 0.9, 1),  # 9 of 10
        ([3.0, 1.0, 0.0], 0.95, 2),
        ([2.0, 2.0, 1.0, 0.1], 0.8, 2),  # 8 of 9.01
        ([1.0, 0.0, 0.0], 1.0, 1),
    ],
)
def test_known_singular_values(singular_values, share, expected):
    torch.manual_seed(0)
    size = len(singular_values)
    left, _ = torch.linalg.qr(torch.randn(50, size, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    states = left @ torch.diag(torch.tensor(singular_values, dtype=torch.float64)) @ right
    assert effective_rank(states, share) == expected
    assert effective_rank(1000 * states, share) == expected


def test_the_mean_counts_as_a_direction():
    assert effective_rank(torch.ones(20, 4)) == 1
