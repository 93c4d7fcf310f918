"""Outputs and gradients of every attention backend against the eager one."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from mae_lm_fairseq.core import attention_backends
from mae_lm_fairseq.core.attention_backends import AttentionBackend, attention_pattern, fastest_backend
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.packing import to_device
from tests.support.networks import PRESETS, batch, layout_for, masked, network, text

RAGGED = masked(batch(text(20), text(7, 1), text(13, 2)), [(0, 2), (0, 3), (1, 5), (2, 1), (2, 12)])
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
def test_flex_states_equal_eager(preset, tokens, targets):
    net = network(preset).eval()
    layout = layout_for(tokens, targets)
    with torch.no_grad():
        expected = net.predicted_states(tokens, layout)
        for stack in net.stacks():
            stack.attention_backend = AttentionBackend.flex
        # float32 sums in another order
        torch.testing.assert_close(net.predicted_states(tokens, layout), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("tokens", "targets"), [RAGGED, FULL], ids=["ragged", "full"])
def test_outputs_and_gradients_equal_eager(preset, tokens, targets):
    net = network(preset, dropout=0, attention_dropout=0)
    expected, expected_gradients = gradients(net, AttentionBackend.eager, tokens, targets)
    states, found = gradients(net, AttentionBackend.sdpa, tokens, targets)
    # float32 sums in another order
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    assert found.keys() == expected_gradients.keys()
    assert any("relative_bias" in name and gradient.any() for name, gradient in found.items())
    for name, gradient in found.items():
        scale = expected_gradients[name].abs().max()
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=float(1e-5 * (1 + scale)), msg=name)


@pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa])
def test_a_batch_without_anything_to_predict(backend):
    net = network(attention_dropout=0, dropout=0)
    states, found = gradients(net, backend, *masked(batch(text(5), text(3)), []))
    assert states.shape[0] == 0
    assert not any(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa])
def test_reruns_are_bit_equal_on_a_cpu_with_dropout(backend):
    net = network().train()
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(gradients(net, backend, *RAGGED))
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(gradient, runs[1][1][name]) for name, gradient in runs[0][1].items())


@pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa])
def test_attention_dropout_is_applied_in_training_only(backend):
    layout = layout_for(*FULL).sequence
    pattern = attention_pattern(layout, layout, None, backend)
    q = k = torch.randn(18, 2, 4)
    v = torch.ones(18, 2, 4)
    dropped = pattern.attend(q, k, v, Dropout(0.5).train())
    assert dropped.std() > 0.1  # without dropout every weighted average of ones is one
    torch.testing.assert_close(pattern.attend(q, k, v, Dropout(0.5).eval()), torch.ones(18, 2, 4))


def test_flex_refuses_dropout():
    layout = layout_for(*FULL).sequence
    pattern = attention_pattern(layout, layout, None, AttentionBackend.flex)
    with pytest.raises(ValueError, match="no attention dropout"):
        pattern.attend(*torch.randn(3, 18, 2, 4), Dropout(0.1).train())


@pytest.mark.parametrize("lengths", [(20, 7, 13), (8, 8), (3, 1, 1, 1, 18, 2), (16,)])
def test_flex_block_mask_has_only_blocks_within_rows(monkeypatch, lengths):
    monkeypatch.setattr(attention_backends, "FLEX_BLOCK", 4)
    layout = layout_for(*masked(batch(*map(text, lengths)), [(0, 2)]))
    pattern = attention_pattern(layout.visible, layout.sequence, None, AttentionBackend.flex).block_mask
    sizes = [part.index.numel() for part in (layout.visible, layout.sequence)]
    dense = create_block_mask(pattern.mask_mod, None, None, *sizes, device="cpu", BLOCK_SIZE=4)
    blocks = dense.to_dense() + (dense.full_kv_num_blocks is not None) * _full_blocks(dense)
    assert torch.equal(pattern.to_dense().bool(), blocks.bool())


def _full_blocks(mask):
    """Return ``to_dense()`` of the full blocks, which ``create_block_mask`` stores separately."""
    dense = torch.zeros_like(mask.to_dense())
    for row, number in enumerate(mask.full_kv_num_blocks[0, 0]):
        dense[0, 0, row, mask.full_kv_indices[0, 0, row, :number].long()] = 1
    return dense


def test_auto_backend_of_each_device():
    assert fastest_backend("cpu") is AttentionBackend.eager
    assert fastest_backend("cuda") is AttentionBackend.sdpa


@pytest.mark.parametrize("checkpoint_activations", [False, True])
@pytest.mark.parametrize("preset", ["mae_lm", "mae_lm_roberta", "mae_lm_3ml_cross"])
def test_sdpa_sums_gradients_of_the_bias_in_float32(preset, checkpoint_activations, monkeypatch):
    """The layers share one bfloat16 copy of the bias; the gradients equal those of a copy for each layer."""

    def copy_for_each_layer(self, q, k, v, bias, dropout):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), scale=1.0)

    net = network(preset, dropout=0, attention_dropout=0)
    for stack in net.stacks():
        stack.checkpoint_activations = checkpoint_activations
    with torch.autocast("cpu", torch.bfloat16):
        _, found = gradients(net, AttentionBackend.sdpa, *RAGGED)
        monkeypatch.setattr(attention_backends.SharedCast, "__call__", copy_for_each_layer)
        _, expected = gradients(net, AttentionBackend.sdpa, *RAGGED)
    assert any("relative_bias" in name and gradient.any() for name, gradient in found.items())
    for name, gradient in found.items():
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


@pytest.mark.parametrize("backend", [AttentionBackend.eager, AttentionBackend.sdpa])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_reads_no_value_from_the_device(preset, precision, backend):
    """On the meta device, which has no values: reading one, as .item() does, would make a GPU wait."""
    tokens, targets = RAGGED
    layout = to_device(layout_for(tokens, targets), "meta")
    net = network(preset).to("meta")
    for stack in net.stacks():
        stack.attention_backend = backend
    with torch.autocast("cpu", precision, enabled=precision is not None):
        logits = net(tokens.to("meta"), layout)
    logits.float().logsumexp(-1).sum().backward()
    assert logits.shape == (layout.predicted.index.numel(), net.encoder.embed_tokens.num_embeddings)
    assert all(parameter.grad.is_meta for parameter in net.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_pattern_of_flex_reads_no_value_from_the_device(preset):
    """FlexAttention itself refuses the meta device."""
    layout = to_device(layout_for(*RAGGED), "meta")
    encoder = network(preset).to("meta").encoder
    seen = encoder.seen(layout)
    pattern = attention_pattern(seen, seen, encoder.relative_bias, AttentionBackend.flex)
    assert pattern.block_mask.kv_indices.is_meta
