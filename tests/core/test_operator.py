"""Attention as an operator: its equations on a CPU, and what torch.compile and autograd rely on."""

import pytest
import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend, attention_pattern
from mae_lm_fairseq.core.config import RelativeBucketing
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from tests.core.test_attention_backends import RAGGED, gradients
from tests.support.comparisons import assert_close
from tests.support.networks import VARIANTS, layout_for, network


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_network_equals_eager(variant):
    net = network(variant, attention_dropout=0, dropout=0).double()
    expected, expected_gradients = gradients(net, AttentionBackend.eager, *RAGGED)
    states, of_kernel = gradients(net, AttentionBackend.fused, *RAGGED)
    # Eager attention computes its scores in float32, and the bias is multiplied by log2(e) in float32.
    assert_close(states, expected, 1e-6)
    assert of_kernel.keys() == expected_gradients.keys()
    assert any("relative_bias" in name and gradient.any() for name, gradient in of_kernel.items())
    for name, gradient in expected_gradients.items():
        tolerance = 3e-7 * (1 + float(gradient.abs().max()))
        torch.testing.assert_close(of_kernel[name], gradient, rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_apart", [False, True])
def test_operator_is_what_it_declares(is_apart, has_bias, dropout):
    """Schema, results on tensors without content and gradients, as torch.compile relies on them."""
    layouts = layout_for(*RAGGED)
    queries, keys = layouts.predicted if is_apart else layouts.visible, layouts.visible
    bias = random_bias() if has_bias else None
    rows, bias = attention_pattern(queries, keys, bias, AttentionBackend.fused)
    packed = torch.randn(keys.index.numel(), 2 if is_apart else 3, 2, 8, requires_grad=True)
    q = torch.randn(queries.index.numel(), 2, 8, requires_grad=True) if is_apart else None
    random = torch.randint(-(2**31), 2**31, (queries.index.numel(), 2), dtype=torch.int32) if dropout else None
    table, *of_pairs = bias or (None,) * 4
    if has_bias:
        table = table.detach().requires_grad_()
    pairs = (*rows[:4], *of_pairs, random, *rows[4:], dropout)
    operators = torch.ops.mae_lm_fairseq
    torch.library.opcheck(operators.attend.default, (packed, q, table, *pairs))
    output = [x.detach() for x in operators.attend(packed, q, table, *pairs)]
    inputs = (output[0], packed.detach(), None if q is None else q.detach(), *output, 8 if has_bias else 0)
    torch.library.opcheck(operators.attend_backward.default, (*inputs, *pairs))


def random_bias() -> RelativePositionBias:
    bias = RelativePositionBias(8, 16, 2, 24, RelativeBucketing.t5)
    torch.nn.init.normal_(bias.weight)  # before the pattern looks up the bias of each offset
    return bias
