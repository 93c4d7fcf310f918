"""Drop rate, expectation and gradient of the inexpensive masks of dropout."""

import pytest
import torch

from mae_lm_fairseq.core.dropout import Dropout, hashed_dropout

FORMS = {"cheap": lambda x, p: Dropout(p)(x), "hashed": hashed_dropout}
of_every_form = pytest.mark.parametrize("dropout", FORMS.values(), ids=FORMS)


@of_every_form
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drop_rate_and_expectation(dropout, p):
    torch.manual_seed(0)
    n = 1_000_003
    dropped = dropout(torch.ones(n // 769, 769), p)
    # Five standard deviations of a binomial proportion.
    assert abs((dropped == 0).float().mean().item() - p) < 5 * (p * (1 - p) / n) ** 0.5
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=2e-4)]


@pytest.mark.parametrize("p", [-0.5, 1.0, 1.5, float("nan")])
def test_invalid_rates_are_refused(p):
    with pytest.raises(ValueError, match=f"dropout {p} "):
        Dropout(p)


@of_every_form
def test_neighbouring_elements_are_independent(dropout):
    torch.manual_seed(1)
    kept = (dropout(torch.ones(2000, 500), 0.5) > 0).float().flatten() - 0.5
    for lag in (1, 2, 3, 4, 8, 500, 1000):
        correlation = (kept[lag:] * kept[:-lag]).mean().item() / 0.25
        assert abs(correlation) < 5 / 1000


@of_every_form
def test_gradient_is_the_mask(dropout):
    torch.manual_seed(2)
    x = torch.randn(7, 3, 11, requires_grad=True)
    y = dropout(x, 0.3)
    y.sum().backward()
    assert y.shape == x.shape
    assert dropout(x.bfloat16(), 0.3).dtype is torch.bfloat16
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
