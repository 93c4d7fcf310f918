"""Outputs and gradients of every attention backend against the eager one."""

import pytest
import torch

from mae_lm_fairseq.core import attention_backends
from mae_lm_fairseq.core.attention_backends import (
    BIAS_ALIGNMENT,
    AttentionBackend,
    attention_pattern,
    fastest_backend,
)
from mae_lm_fairseq.core.config import RelativeBucketing
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.packing import to_device
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from tests.support.comparisons import assert_equal
from tests.support.networks import PAD, PRESETS, batch, layout_for, masked, network, text

RAGGED = masked(batch(text(20), text(7, 1), text(13, 2)), [(0, 2), (0, 3), (1, 5), (2, 1), (2, 12)])
BACKENDS = pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa])
FULL = masked(batch(text(9), text(9, 1)), [(0, 2), (1, 2)])


def squares(states):
    return states.square().sum()


def gradients(net, backend, tokens, targets, device="cpu", loss=squares):
    layout = to_device(layout_for(tokens, targets), device)
    tokens = tokens.to(device)
    net = net.to(device)
    for stack in net.stacks():
        stack.attention_backend = backend
    net.zero_grad()
    states = net.predicted_states(tokens, layout)
    loss(states).backward()
    return states.detach(), {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("tokens", "targets"), [RAGGED, FULL], ids=["ragged", "full"])
def test_outputs_and_gradients_equal_eager(preset, tokens, targets):
    net = network(preset, dropout=0, attention_dropout=0)
    expected, expected_gradients = gradients(net, AttentionBackend.eager, tokens, targets)
    states, of_sdpa = gradients(net, AttentionBackend.sdpa, tokens, targets)
    # float32 sums in another order
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    assert of_sdpa.keys() == expected_gradients.keys()
    assert any("relative_bias" in name and gradient.any() for name, gradient in of_sdpa.items())
    for name, gradient in of_sdpa.items():
        scale = expected_gradients[name].abs().max()
        # With expanded masks, sums have more terms: eager is 8e-6 off float64, and sdpa 4e-6 in the other direction.
        rounding = 1e-5 if net.config.mask_states == 1 else 2e-5
        torch.testing.assert_close(
            gradient, expected_gradients[name], rtol=0, atol=float(rounding * (1 + scale)), msg=name
        )


@BACKENDS
def test_a_batch_without_anything_to_predict(backend):
    net = network(attention_dropout=0, dropout=0)
    states, gradients_by_name = gradients(net, backend, *masked(batch(text(5), text(3)), []))
    assert states.shape[0] == 0
    assert not any(gradient.any() for gradient in gradients_by_name.values())


@BACKENDS
def test_reruns_are_bit_equal_on_a_cpu_with_dropout(backend):
    net = network().train()
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(gradients(net, backend, *RAGGED))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa, AttentionBackend.fused])
def test_attention_dropout_is_applied_in_training_only(backend):
    layout = layout_for(*FULL).sequence
    pattern = attention_pattern(layout, layout, None, backend)
    q = k = torch.randn(18, 2, 4)
    v = torch.ones(18, 2, 4)
    dropped = pattern.attend(torch.stack([k, v], 1), q, Dropout(0.5).train())
    assert dropped.std() > 0.1  # without dropout every weighted average of ones is one
    kept = pattern.attend(torch.stack([k, v], 1), q, Dropout(0.5).eval())
    torch.testing.assert_close(kept, torch.ones(18, 2, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_eager_adds_the_bias_and_takes_the_softmax_in_float32(dtype):
    """In half precision, a bias of 0.12 would not change a score of 256 at all."""
    bias = RelativePositionBias(
        buckets=4, max_distance=4, heads=1, max_positions=9, bucketing=RelativeBucketing.t5
    ).requires_grad_(False)
    bias.weight.copy_(torch.tensor([[-0.12], [-0.04], [0.04], [0.12]]))
    layout = layout_for(*FULL).sequence
    q = k = torch.full((18, 1, 1), 16.0, dtype=dtype)  # a head of size 1, so that the scale of the scores is 1
    v = torch.arange(18).remainder(9).ge(5).to(dtype)[:, None, None]
    pattern = attention_pattern(layout, layout, bias, AttentionBackend.eager)
    packed = torch.stack([q, k, v], 1)
    attended, expected = (pattern.attend(values, None, Dropout(0.0)) for values in (packed, packed.float()))
    assert expected[0] - expected[8] > 0.015  # the bias matters
    # Weights and result are rounded once each, by half of eps at most.
    torch.testing.assert_close(attended.float(), expected, rtol=torch.finfo(dtype).eps, atol=0)


def test_auto_backend_of_each_device():
    assert fastest_backend(torch.device("cpu"), training=True) is AttentionBackend.eager


@pytest.mark.parametrize("checkpoint_activations", [False, True])
@pytest.mark.parametrize("preset", ["mae_lm", "mae_lm_roberta", "mae_lm_3ml_cross"])
def test_sdpa_sums_gradients_of_the_bias_in_float32(preset, checkpoint_activations, monkeypatch):
    """The layers share one bfloat16 copy of the bias; the gradients equal those of a copy for each layer."""

    def copy_for_each_layer(self, q, k, v, bias, dropout):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))

    net = network(preset, dropout=0, attention_dropout=0)
    for stack in net.stacks():
        stack.checkpoint_activations = checkpoint_activations
    with torch.autocast("cpu", torch.bfloat16):
        _, of_sdpa = gradients(net, AttentionBackend.sdpa, *RAGGED)
        monkeypatch.setattr(attention_backends.SharedCast, "__call__", copy_for_each_layer)
        _, expected = gradients(net, AttentionBackend.sdpa, *RAGGED)
    assert any("relative_bias" in name and gradient.any() for name, gradient in of_sdpa.items())
    for name, gradient in of_sdpa.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)


def test_sdpa_casts_the_bias_once_per_pattern(monkeypatch):
    casts = []
    apply = attention_backends._Cast.apply
    monkeypatch.setattr(attention_backends._Cast, "apply", lambda x, cast: casts.append(cast) or apply(x, cast))
    net = network("mae_lm_roberta", dropout=0, attention_dropout=0)
    with torch.autocast("cpu", torch.bfloat16):
        gradients(net, AttentionBackend.sdpa, *RAGGED)
    assert len(casts) == len(net.encoder.layers) > 1
    assert all(cast is casts[0] for cast in casts)


def test_rows_of_the_shared_bias_are_aligned(monkeypatch):
    """Otherwise torch's kernel for a trained bias copies it in every layer, on a GPU."""
    biases = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, k, v, bias, p: biases.append((q, bias)) or sdpa(q, k, v, bias, p),
    )
    layout = layout_for(*RAGGED).visible
    assert layout.width % BIAS_ALIGNMENT
    assert not layout.is_full
    q = torch.randn(layout.index.numel(), 4, 4)
    for dtype in (torch.float32, torch.bfloat16):
        pattern = attention_pattern(layout, layout, network().encoder.relative_bias, AttentionBackend.sdpa)
        pattern.attend(torch.stack(3 * [q.to(dtype)], 1), None, Dropout(0))
    assert [bias.dtype for _, bias in biases] == [torch.float32, torch.bfloat16]
    for _, bias in biases:
        assert bias.shape[-1] == layout.width
        assert all(stride % BIAS_ALIGNMENT == 0 for stride in bias.stride()[:-1])


@BACKENDS
def test_full_rows_without_positions_have_no_bias(backend):
    """Fused kernels that take no bias can run."""
    full, ragged = layout_for(*FULL).sequence, layout_for(*RAGGED).sequence
    assert attention_pattern(full, full, None, backend).bias is None
    assert attention_pattern(ragged, ragged, None, backend).bias is not None


@BACKENDS
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("variant", [*PRESETS, "mae_lm_pre_norm", "mae_lm_exlm_pre_norm"])
def test_a_step_reads_no_value_from_the_device(variant, precision, backend):
    """On the meta device, which has no values: reading one, as .item() does, would make a GPU wait."""
    tokens, targets = RAGGED
    net = network(variant).to("meta")
    for stack in net.stacks():
        stack.attention_backend = backend
    if net.config.mask_states == 1:  # with kept tokens, and a row without masks; the alignment loss has none
        tokens = torch.where(targets.ne(PAD) & torch.arange(3)[:, None].eq(1), targets, tokens)
    layout = to_device(layout_for(tokens, targets), "meta")
    tokens, targets = tokens.to("meta"), targets[targets.ne(PAD)].to("meta")
    with torch.autocast("cpu", precision, enabled=precision is not None):
        logits = net(tokens, layout)
        loss, _ = net.lm_head.loss(net.predicted_states(tokens, layout), targets, layout)
    (loss + logits.float().logsumexp(-1).sum()).backward()
    assert logits.shape == (layout.predicted.index.numel(), net.encoder.embed_tokens.num_embeddings)
    assert all(parameter.grad.is_meta for parameter in net.parameters())
