"""Drop rate, expectation and gradient of the inexpensive Dropout mask."""

import pytest
import torch

from mae_lm_fairseq.core.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drop_rate_and_expectation(p):
    torch.manual_seed(0)
    n = 1_000_003
    dropped = Dropout(p)(torch.ones(n))
    # Five standard deviations of a binomial proportion.
    assert abs((dropped == 0).float().mean().item() - p) < 5 * (p * (1 - p) / n) ** 0.5
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=2e-4)]


@pytest.mark.parametrize("p", [-0.5, 1.0, 1.5, float("nan")])
def test_invalid_rates_are_refused(p):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        Dropout(p)


def test_neighbouring_elements_are_independent():
    torch.manual_seed(1)
    kept = (Dropout(0.5)(torch.ones(1_000_000)) > 0).float() - 0.5
    for lag in (1, 2, 3, 4, 8):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / 0.25
        assert abs(correlation) < 5 / 1000


def test_gradient_is_the_mask():
    torch.manual_seed(2)
    x = torch.randn(7, 11, requires_grad=True)
    y = Dropout(0.3)(x)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_reproducible_off_in_evaluation_and_at_zero():
    x = torch.randn(5, 3)
    module = Dropout(0.5)
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    assert torch.equal(first, module(x))
    assert not torch.equal(first, module(x))
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dtype_is_kept():
    assert Dropout(0.5)(torch.ones(4, dtype=torch.bfloat16)).dtype is torch.bfloat16
