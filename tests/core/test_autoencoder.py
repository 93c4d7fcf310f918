"""The whole network against plain implementations of its own, and at the edges."""

import pytest
import torch
import torch.nn.functional as F

from mae_lm_fairseq.core.config import RelativeBiasInit
from mae_lm_fairseq.core.relative_position import relative_position_bucket

from .networks import EOS, MASK, PAD, PRESETS, batch, config, layout_for, masked, network, text

PLACES = [(0, 2), (0, 3), (1, 1), (2, 5), (2, 11)]


def plain_bias(weights, prefix, query_positions, key_positions, cfg):
    name = f"{prefix}.relative_bias.weight"
    if name not in weights:
        return 0.0
    offset = key_positions[None, :] - query_positions[:, None]
    return weights[name][relative_position_bucket(offset, 32, cfg.relative_max_distance)].permute(2, 0, 1)


def plain_layer(x, weights, prefix, bias, heads):
    """One post-layer-norm layer over the tokens [T, d] of one row, head by head."""
    d = x.shape[1]
    q, k, v = (
        x @ weights[f"{prefix}.attention.qkv_proj.weight"].T + weights[f"{prefix}.attention.qkv_proj.bias"]
    ).split(d, 1)
    mixed = []
    for head in range(heads):
        part = slice(head * d // heads, (head + 1) * d // heads)
        scores = q[:, part] @ k[:, part].T / (d // heads) ** 0.5 + (bias[head] if torch.is_tensor(bias) else 0.0)
        mixed.append(scores.softmax(-1) @ v[:, part])
    out = torch.cat(mixed, 1) @ weights[f"{prefix}.attention.out_proj.weight"].T
    x = plain_norm(x + out + weights[f"{prefix}.attention.out_proj.bias"], weights, f"{prefix}.attention_layer_norm")
    inner = F.gelu(x @ weights[f"{prefix}.fc1.weight"].T + weights[f"{prefix}.fc1.bias"])
    return plain_norm(
        x + inner @ weights[f"{prefix}.fc2.weight"].T + weights[f"{prefix}.fc2.bias"],
        weights,
        f"{prefix}.final_layer_norm",
    )


def plain_norm(x, weights, prefix):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{prefix}.weight"]
        + weights[f"{prefix}.bias"]
    )


def plain_stack(x, positions, weights, prefix, cfg, layers):
    x = plain_norm(
        x + weights[f"{prefix}.embed_positions.weight"][positions + 2], weights, f"{prefix}.embed_layer_norm"
    )
    bias = plain_bias(weights, prefix, positions, positions, cfg)
    for layer in range(layers):
        x = plain_layer(x, weights, f"{prefix}.layers.{layer}", bias, cfg.encoder_attention_heads)
    return x


def plain_logits(model, tokens, targets):
    """The method as the papers tell it: one row after the other, every layer at every position, loops."""
    weights, cfg = dict(model.named_parameters()), model.config
    embeddings = weights["encoder.embed_tokens.weight"]
    logits = []
    for row, target in zip(tokens, targets, strict=True):
        row, target = row[row.ne(PAD)], target[row.ne(PAD)]
        positions = torch.arange(len(row))
        seen = row.ne(MASK) if cfg.decoder_layers else row.ne(PAD)
        x = plain_stack(embeddings[row[seen]], positions[seen], weights, "encoder", cfg, cfg.encoder_layers)
        if cfg.decoder_layers:
            joined = embeddings[MASK].repeat(len(row), 1)
            joined[seen] = x
            x = plain_stack(joined, positions, weights, "decoder", cfg, cfg.decoder_layers)
        x = x[target.ne(PAD)]
        x = F.gelu(x @ weights["lm_head.dense.weight"].T + weights["lm_head.dense.bias"])
        logits.append(plain_norm(x, weights, "lm_head.layer_norm") @ embeddings.T + weights["lm_head.bias"])
    return torch.cat(logits)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("mae_lm", {}),
        ("mae_lm", {"decoder_layers": 1}),
        ("mae_lm", {"relative_buckets": 0, "decoder_relative_buckets": 0}),
        ("mae_lm", {"decoder_relative_buckets": 0}),
        ("mae_lm_roberta", {}),
        ("mae_lm_roberta", {"relative_buckets": 0}),
    ],
)
def test_equals_a_plain_implementation(preset, changes):
    model = network(preset, **changes).eval()
    tokens, targets = masked(batch(text(9, 1), text(3, 2), text(14, 3)), PLACES)
    layout = layout_for(tokens, targets)
    logits, expected = model(tokens, layout), plain_logits(model, tokens, targets)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    ours = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    plain = torch.autograd.grad(expected.square().sum(), list(model.parameters()), allow_unused=True)
    for (name, parameter), a, b in zip(model.named_parameters(), ours, plain, strict=True):
        b = torch.zeros_like(parameter) if b is None else b
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_kept_or_random_token_is_seen_and_predicted(preset):
    model = network(preset).eval()
    tokens, targets = masked(batch(text(9, 1), text(12, 2)), [(0, 2), (1, 3)])
    tokens[0, 2], tokens[1, 5], targets[1, 5] = targets[0, 2], 7, 11
    torch.testing.assert_close(
        model(tokens, layout_for(tokens, targets)), plain_logits(model, tokens, targets), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_masked_tokens_identity_changes_only_its_target(preset):
    model = network(preset).eval()
    original = batch(text(9, 1), text(12, 2))
    other = original.clone()
    other[0, 4] = 5 if original[0, 4] != 5 else 6
    first, second = masked(original, [(0, 4), (1, 2)]), masked(other, [(0, 4), (1, 2)])
    assert not torch.equal(first[1], second[1])
    assert torch.equal(model(first[0], layout_for(*first)), model(second[0], layout_for(*second)))


EDGES = {
    "one token": (batch([0]), []),
    "one masked token": (batch([0]), [(0, 0)]),
    "no masked token": (batch(text(6), text(3)), []),
    "only masked tokens": (batch(text(3), text(2)), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
    "a row of masks beside an ordinary one": (batch(text(3), text(4)), [(0, 0), (0, 1), (0, 2), (1, 2)]),
    "an all-padding row": (torch.tensor([[0, 5, 6, EOS], [PAD] * 4]), [(0, 1)]),
    "nothing but padding": (torch.full((2, 3), PAD), []),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_give_finite_losses_and_gradients_everywhere(preset, edge):
    model = network(preset, dropout=0.1, attention_dropout=0.1).train()
    tokens, targets = masked(*EDGES[edge])
    logits = model(tokens, layout_for(tokens, targets))
    assert logits.shape == (len(EDGES[edge][1]), 30)
    loss = F.cross_entropy(logits, targets[targets.ne(PAD)], reduction="sum")
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_a_text_longer_than_the_position_table_is_refused_and_one_as_long_is_not():
    model = network()
    for length in (24, 25):
        tokens = batch(text(length))
        layout = layout_for(tokens, torch.full_like(tokens, PAD))
        if length == 24:
            assert model.encode(tokens, layout)[-1].shape == (24, 16)
        else:
            with pytest.raises(ValueError, match="25 tokens is longer than --max-positions 24"):
                model.encode(tokens, layout)


def test_dropout_settings_act_where_they_say():
    tokens, targets = masked(batch(text(12, 1), text(12, 2)), [(0, 4), (1, 2)])
    layout = layout_for(tokens, targets)
    still = {"dropout": 0.0, "attention_dropout": 0.0, "decoder_dropout": 0.0}
    reference = network(**still).train()(tokens, layout)
    assert torch.equal(network(**still).eval()(tokens, layout), reference)
    for name in still:
        model = network(**{**still, name: 0.5}).train()
        assert not torch.allclose(model(tokens, layout), reference)
        noisy_encoder = not torch.equal(model.encode(tokens, layout)[-1], network(**still).encode(tokens, layout)[-1])
        assert noisy_encoder is (name != "decoder_dropout")


@pytest.mark.parametrize("preset", PRESETS)
def test_checkpointed_activations_change_memory_and_nothing_else(preset):
    """Dropout is on: the layers that are computed again must draw the same masks."""
    tokens, targets = masked(batch(text(20, 1), text(17, 2)), [(0, 4), (1, 2)])
    layout = layout_for(tokens, targets)
    outcomes = []
    for checkpointed in (False, True):
        model = network(preset, decoder_dropout=0.1 if preset == "mae_lm" else 0.0)
        for stack in model.stacks():
            stack.checkpoint_activations = checkpointed
        kept = 0

        def keep(tensor):
            nonlocal kept
            kept += tensor.numel()
            return tensor

        torch.manual_seed(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logits = model(tokens, layout)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        outcomes.append((logits, gradients, kept))
    assert len(model.stacks()) == (2 if preset == "mae_lm" else 1)
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0][1], outcomes[1][1], strict=True))
    assert outcomes[1][2] < outcomes[0][2] / 2


def test_bert_initialisation():
    model = network(encoder_embed_dim=128, encoder_ffn_embed_dim=512, init_std=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("layer_norm.weight"):
            assert parameter.eq(1).all(), name
        elif name.endswith("bias"):
            assert parameter.eq(0).all(), name
        elif "relative_bias" not in name:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
    assert model.encoder.embed_tokens.weight[PAD].eq(0).all()
    assert model.encoder.embed_positions.weight[PAD].eq(0).all()
    assert model.lm_head.weight is model.encoder.embed_tokens.weight


def test_relative_bias_init_moves_both_tables_and_nothing_else():
    normal, neighbours = (
        network(relative_bias_init=RelativeBiasInit.normal),
        network(relative_bias_init=RelativeBiasInit.neighbours),
    )
    changed = {
        name
        for (name, a), b in zip(normal.named_parameters(), neighbours.parameters(), strict=True)
        if not torch.equal(a, b)
    }
    assert changed == {"encoder.relative_bias.weight", "decoder.relative_bias.weight"}


def test_config_is_kept():
    assert network().config == config()
