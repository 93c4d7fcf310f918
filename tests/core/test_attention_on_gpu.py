"""Outputs and gradients of every attention backend on a GPU, in every precision, against eager attention in float32."""

import pytest
import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from tests.core.test_attention_backends import FULL, RAGGED, gradients
from tests.support.networks import PRESETS, network

pytestmark = pytest.mark.gpu

# float32 sums in another order. Half precision rounds weights, products and sums by up to 2**-11 and 2**-8: eager
# attention on a CPU differs by 0.0013 and 0.010, and another kernel may differ by three times as much.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 0.004, torch.bfloat16: 0.03}


@pytest.fixture(autouse=True)
def exact_float32():
    """TF32 has ten bits of precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["eager", "sdpa", "fused"])
def backend(request, gpu):
    if gpu == "cpu" and request.param == "fused":
        pytest.skip("interpreted_kernels.py tests it on a CPU")
    return AttentionBackend(request.param)


def wide_network(preset="mae_lm"):
    """Return a network with four heads of 16 values, without dropout."""
    return network(preset, dropout=0, attention_dropout=0, encoder_embed_dim=64, init_std=0.05)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("batch", [RAGGED, FULL], ids=["ragged", "full"])
def test_outputs_and_gradients_equal_those_in_float32(preset, dtype, batch, backend, gpu):
    net = wide_network(preset)
    expected, expected_gradients = gradients(net, AttentionBackend.eager, *batch, gpu, projection)
    states, gradients_by_name = gradients(net.to(dtype), backend, *batch, gpu, projection)
    assert relative_difference(states, expected) < TOLERANCES[dtype]
    assert gradients_by_name.keys() == expected_gradients.keys()
    assert any("relative_bias" in name and gradient.any() for name, gradient in gradients_by_name.items())
    # Some gradients nearly cancel, such as those of the biases of keys: compared with all of them together.
    whole = torch.cat([gradient.flatten() for gradient in expected_gradients.values()])
    difference = torch.cat(
        [(gradients_by_name[name].float() - wanted).flatten() for name, wanted in expected_gradients.items()]
    )
    assert difference.norm() < TOLERANCES[dtype] * whole.norm()


def projection(states):
    """Return a loss whose gradient does not vanish behind a layer norm, as that of the sum of squares nearly does."""
    direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    return (states.float() * direction.to(states.device)).sum()


def relative_difference(values, expected):
    return (values.float() - expected).norm() / expected.norm()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("head_size", [64, 80, 128])
def test_the_fused_kernel_equals_the_equations_with_dropout(head_size, dtype, gpu):
    if gpu == "cpu":
        pytest.skip("interpreted_kernels.py tests it on a CPU")
    from mae_lm_fairseq.core.relative_position import relative_position_bucket
    from tests.core.interpreted_kernels import Case, assert_equal

    assert_equal(Case([150, 1, 64], [140, 64, 33], 4, head_size, relative_position_bucket, gpu), dtype, dropout=0.1)


def test_a_batch_without_anything_to_predict(backend, gpu):
    tokens, _ = RAGGED
    states, gradients_by_name = gradients(wide_network(), backend, tokens, torch.full_like(tokens, 1), gpu)
    assert states.shape[0] == 0
    assert not any(gradient.any() for gradient in gradients_by_name.values())
