"""Dropout of fused attention on a CPU: its gradients, and the hash that draws it."""

import pytest
import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend, attention_pattern
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.kernels.operator import RANDOM_LEVELS, keep
from tests.support.comparisons import assert_close
from tests.support.networks import batch, layout_for, masked, text

KEYS = 6


@pytest.fixture
def attend():
    """Return ``attend(packed, dropout)``, fused attention in one row of :data:`KEYS` tokens with the same random mask
    in every call.
    """
    layout = layout_for(*masked(batch(text(KEYS)), [])).sequence
    pattern = attention_pattern(layout, layout, None, AttentionBackend.fused)

    def attend_with_seed(packed, dropout):
        torch.manual_seed(0)
        return pattern.attend(packed, None, dropout)

    return attend_with_seed


def draw():
    """Return queries, keys and values of one head, as wide as there are keys."""
    return torch.randn(KEYS, 3, 1, KEYS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_gradients_are_those_of_the_equations(attend):
    """The mask of the weights is read off the output for unit vectors as values. Float64 sums in another order."""
    dropout, packed = Dropout(0.4).train(), draw()

    def weights(packed):
        return (packed[:, 0, 0] @ packed[:, 1, 0].T / KEYS**0.5).softmax(1)

    unit_values = packed.clone()
    unit_values[:, 2, 0] = torch.eye(KEYS)
    mask = attend(unit_values, dropout)[:, 0] / weights(packed)
    assert 0 < mask.eq(0).sum() < mask.numel()
    ours, plain = packed.clone().requires_grad_(), packed.clone().requires_grad_()
    gradient = torch.randn(KEYS, KEYS, dtype=torch.float64)
    output, expected = attend(ours, dropout)[:, 0], (mask * weights(plain)) @ plain[:, 2, 0]
    assert_close(output, expected, 1e-12)
    output.backward(gradient)
    expected.backward(gradient)
    assert_close(ours.grad, plain.grad, 1e-12)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_the_hash_is_that_of_unsigned_integers(dropout):
    """lowbias32 without its last step, in Python's integers."""
    queries, keys, low = [-(2**31), -(2**30) - 7, -1, 0, 1, 2**30 + 7, 2**31 - 1], 100, 2**32 - 1

    def is_kept(query, key):
        x = (query & low) ^ (key * 0x9E3779B9 & low)
        x = (x ^ x >> 16) * 0x7FEB352D & low
        x = (x ^ x >> 15) * 0x846CA68B & low
        return x >= round(dropout * RANDOM_LEVELS)

    expected = torch.tensor([[is_kept(query, key) for key in range(keys)] for query in queries])
    [kept] = keep(torch.tensor(queries, dtype=torch.int32)[:, None], keys, dropout)
    assert torch.equal(kept.ne(0), expected)
