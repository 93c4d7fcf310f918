"""The whole network against a plain reimplementation, and edge cases."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from mae_lm_fairseq.core.config import MaskJoin, RelativeBiasInit
from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, batch_layout
from mae_lm_fairseq.core.relative_position import relative_position_bucket
from tests.support.comparisons import assert_close, assert_equal
from tests.support.networks import EOS, MASK, PAD, PRESETS, VARIANTS, batch, config, layout_for, masked, network, text

EXPANDING = [variant for variant in VARIANTS if config(variant).mask_states > 1]
"""Variants in which ``[MASK]`` tokens have several states."""
PLACES = [(0, 2), (0, 3), (1, 1), (2, 5), (2, 11), (3, 0)]
MASKED, MIXED, NOT_MASKED = "MMMMMM", "MEKRMM", ("RRRRRR", "KKKKKK")
"""Treatments of the predicted positions: masked (M), also in the encoder (E), replaced by a random token (R), kept."""


def treated(treatment):
    """Return tokens, targets and early masks of four rows, the last of which is one predicted token, and more padding.

    With :data:`MIXED`, the second row has no ``[MASK]``.
    """
    tokens, targets = masked(batch(text(9, 1), text(3, 2), text(14, 3), text(1, 4)), PLACES)
    tokens, targets = (F.pad(part, (0, 5), value=PAD) for part in (tokens, targets))
    early = torch.zeros_like(tokens, dtype=torch.bool)
    for place, kind in zip(PLACES, treatment, strict=True):
        tokens[place] = {"R": 7, "K": int(targets[place])}.get(kind, MASK)
        early[place] = kind == "E"
    return tokens, targets, early


def plain_linear(x, weights, prefix):
    return x @ weights[f"{prefix}.weight"].T + weights[f"{prefix}.bias"]


def plain_norm(x, weights, prefix):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{prefix}.weight"]
        + weights[f"{prefix}.bias"]
    )


def plain_embed(x, positions, weights, prefix):
    table = weights.get(f"{prefix}.embed_positions.weight", weights["encoder.embed_positions.weight"])
    return plain_norm(x + table[positions + 2], weights, f"{prefix}.embed_layer_norm")


def plain_bias(weights, stack, query_positions, key_positions, cfg):
    name = f"{stack}.relative_bias.weight"
    if name not in weights:
        return 0.0
    offset = key_positions[None, :] - query_positions[:, None]
    return weights[name][relative_position_bucket(offset, 32, cfg.relative_max_distance)].permute(2, 0, 1)


def plain_attention(queries, keys, weights, prefix, bias, heads):
    """Return the attention output of the queries [Q, d] of one row over the keys [K, d], computed head by head.

    Without keys the output is the bias of the output projection.
    """
    d = queries.shape[1]
    q = plain_linear(queries, weights, f"{prefix}.qkv_proj")[:, :d]
    k, v = plain_linear(keys, weights, f"{prefix}.qkv_proj")[:, d:].split(d, 1)
    mixed = []
    for head in range(heads):
        part = slice(head * d // heads, (head + 1) * d // heads)
        scores = q[:, part] @ k[:, part].T / (d // heads) ** 0.5 + (bias[head] if torch.is_tensor(bias) else 0.0)
        mixed.append(scores.softmax(-1) @ v[:, part])
    return plain_linear(torch.cat(mixed, 1), weights, f"{prefix}.out_proj")


def plain_layer(queries, keys, weights, prefix, bias, heads, memory=None, memory_bias=None):
    """Apply one layer to the positions of one row; with a memory, a Transformer decoder layer."""
    if "encoder.output_layer_norm.weight" in weights:
        return plain_pre_norm_layer(queries, keys, weights, prefix, bias, heads, memory, memory_bias)
    x = queries + plain_attention(queries, keys, weights, f"{prefix}.attention", bias, heads)
    x = plain_norm(x, weights, f"{prefix}.attention_layer_norm")
    if memory is not None:
        x = x + plain_attention(x, memory, weights, f"{prefix}.cross_attention", memory_bias, heads)
        x = plain_norm(x, weights, f"{prefix}.cross_attention_layer_norm")
    x = x + plain_linear(F.gelu(plain_linear(x, weights, f"{prefix}.fc1")), weights, f"{prefix}.fc2")
    return plain_norm(x, weights, f"{prefix}.final_layer_norm")


def plain_pre_norm_layer(queries, keys, weights, prefix, bias, heads, memory, memory_bias):
    attention_norm = f"{prefix}.attention_layer_norm"
    normed = [plain_norm(x, weights, attention_norm) for x in (queries, keys)]
    x = queries + plain_attention(*normed, weights, f"{prefix}.attention", bias, heads)
    if memory is not None:
        normed = plain_norm(x, weights, f"{prefix}.cross_attention_layer_norm")
        x = x + plain_attention(normed, memory, weights, f"{prefix}.cross_attention", memory_bias, heads)
    normed = plain_norm(x, weights, f"{prefix}.final_layer_norm")
    return x + plain_linear(F.gelu(plain_linear(normed, weights, f"{prefix}.fc1")), weights, f"{prefix}.fc2")


def plain_positions(row, clones):
    """Return the position of each state, where every ``[MASK]`` has several."""
    return torch.tensor([i for i, token in enumerate(row) for _ in range(clones if token == MASK else 1)])


def plain_expansion(row, x, weights, part):
    """Return the position of each state and the hidden state that it starts from, given those of the tokens."""
    if f"{part}.embed_clones.weight" not in weights:
        return torch.arange(len(row)), x
    clones = weights[f"{part}.embed_clones.weight"]
    states = [x[i] + extra for i, token in enumerate(row) for extra in (clones if token == MASK else [0.0])]
    return plain_positions(row, len(clones)), torch.stack(states)


def plain_encoder(row, seen, weights, cfg):
    """Return the encoder's output: the hidden states of all tokens that have entered it by the last layer."""
    positions, embedded = plain_expansion(row, weights["encoder.embed_tokens.weight"][row], weights, "encoder")
    seen = seen[positions]
    numbers = torch.arange(int(seen.sum())) if cfg.renumber_visible else positions[seen]
    x = plain_embed(embedded[seen], numbers, weights, "encoder")
    for layer in range(cfg.encoder_layers):
        if cfg.mask_join is MaskJoin.encoder and layer == (cfg.mask_join_layer or cfg.encoder_layers // 2):
            everything = plain_embed(embedded, positions, weights, "encoder")
            everything[seen] = x
            x, numbers = everything, positions
        bias = plain_bias(weights, "encoder", numbers, numbers, cfg)
        x = plain_layer(x, x, weights, f"encoder.layers.{layer}", bias, cfg.encoder_attention_heads)
    return plain_norm(x, weights, "encoder.output_layer_norm") if cfg.pre_norm else x


def plain_decoder(states, row, seen, predicted, weights, cfg):
    """Return the hidden states of the predicted positions, given those of the positions seen by the encoder.

    Where ``[MASK]`` tokens are expanded, return those of all of their states and of the other predicted positions.
    """
    mask_embedding = weights["encoder.embed_tokens.weight"][MASK]
    if "decoder.project_in.weight" in weights:
        states = plain_linear(states, weights, "decoder.project_in")
        mask_embedding = plain_linear(mask_embedding, weights, "decoder.project_in")
    if cfg.reset_mask_states:
        states = torch.where(row[seen].eq(MASK)[:, None], mask_embedding, states)
    x = mask_embedding.repeat(len(row), 1)
    x[seen] = states
    positions, x = plain_expansion(row, x, weights, "decoder")
    x = plain_embed(x, positions, weights, "decoder")
    bias, heads = plain_bias(weights, "decoder", positions, positions, cfg), cfg.decoder_attention_heads or 4
    bias = bias if torch.is_tensor(bias) else torch.zeros(heads, len(x), len(x))
    masked = row.eq(MASK)
    for layer in range(cfg.decoder_layers):
        prefix = f"decoder.layers.{layer}"
        if cfg.decoder_attention == "self":
            x = plain_layer(x, x, weights, prefix, bias, heads)
        elif cfg.decoder_attention == "cross":
            x = plain_layer(x, states, weights, prefix, bias[:, :, seen], heads)
        else:
            x = plain_layer(x, x[masked], weights, prefix, bias[:, :, masked], heads, states, bias[:, :, seen])
    if cfg.pre_norm:
        x = plain_norm(x, weights, "decoder.output_layer_norm")
    x = x[plain_wanted(row, predicted, cfg)[positions]]
    return plain_linear(x, weights, "decoder.project_out") if "decoder.project_out.weight" in weights else x


def plain_wanted(row, predicted, cfg):
    """Return which positions the language model head reads."""
    return predicted if cfg.mask_states == 1 else predicted | row.eq(MASK)


def plain_paths(x, weights, count):
    """Yield the states and the log-probability of every path through ``count`` of the states x [S, d]."""
    start, end = weights["lm_head.transitions.ends"]
    scores = (x @ weights["lm_head.transitions.query"].T) @ (x @ weights["lm_head.transitions.key"].T).T
    first = (weights["lm_head.transitions.key"] @ x.T).T @ start
    last = x @ weights["lm_head.transitions.query"].T @ end
    for path in itertools.combinations(range(len(x)), count):
        total = (first / x.shape[1] ** 0.5).log_softmax(0)[path[0]]
        for number, state in enumerate(path):
            onward = torch.cat([scores[state, state + 1 :], last[state, None]]) / x.shape[1] ** 0.5
            following = path[number + 1] - state - 1 if number + 1 < count else -1
            total = total + onward.log_softmax(0)[following]
        yield path, total


def plain_mixture(x, log_probs, row, predicted, weights, cfg):
    """Return the log-probabilities at the predicted positions, given x, what the language model head reads."""
    positions = plain_positions(row, cfg.mask_states)
    positions = positions[plain_wanted(row, predicted, cfg)[positions]]
    masks, of_masks = row.eq(MASK).nonzero().flatten(), row[positions].eq(MASK)
    result = torch.stack([log_probs[positions == i].mean(0) for i in range(len(row))])  # right where it is one state
    if len(masks):
        paths, scores = zip(*plain_paths(x[of_masks], weights, len(masks)), strict=True)
        emitted = log_probs[of_masks].exp()[torch.tensor(paths)]  # [paths, masks, vocabulary]
        mixed = (torch.stack(scores).softmax(0)[:, None, None] * emitted).sum(0).log()
        result = result.index_copy(0, masks, mixed)
    return result[predicted]


def plain_states(model, tokens, targets, early=None):
    """Yield each row without its padding, its targets, and the states that the language model head predicts from."""
    weights, cfg = dict(model.named_parameters()), model.config
    for number, (row, target) in enumerate(zip(tokens, targets, strict=True)):
        row, target = row[row.ne(PAD)], target[row.ne(PAD)]
        seen = row.ne(MASK) if early is None else row.ne(MASK) | early[number, : len(row)]
        if cfg.mask_join is MaskJoin.embeddings:
            seen = row.ne(PAD)
        x = plain_encoder(row, seen, weights, cfg)
        predicted = target.ne(PAD)
        if cfg.decoder_layers:
            x = plain_decoder(x, row, seen, predicted, weights, cfg)
        else:
            x = x[plain_wanted(row, predicted, cfg)[plain_positions(row, cfg.mask_states)]]
        yield row, target, x


def plain_head(x, weights):
    """Return the logits of hidden states x [N, d]."""
    x = plain_norm(F.gelu(plain_linear(x, weights, "lm_head.dense")), weights, "lm_head.layer_norm")
    return x @ weights["encoder.embed_tokens.weight"].T + weights["lm_head.bias"]


def plain_logits(model, tokens, targets, early=None):
    """Compute the logits as the papers describe the methods: row by row, every layer at every position, with loops."""
    weights, cfg, logits = dict(model.named_parameters()), model.config, []
    for row, target, x in plain_states(model, tokens, targets, early):
        of_row = plain_head(x, weights)
        if cfg.mask_states > 1:
            of_row = plain_mixture(x, of_row.log_softmax(-1), row, target.ne(PAD), weights, cfg)
        logits.append(of_row)
    return torch.cat(logits)


def plain_alignment_loss(model, tokens, targets):
    """Compute the loss of a network that expands ``[MASK]`` tokens, with a term for every path."""
    weights, loss = dict(model.named_parameters()), 0.0
    for row, target, x in plain_states(model, tokens, targets):
        log_probs, wanted = plain_head(x, weights).log_softmax(-1), target[row.eq(MASK)]
        terms = [score + log_probs[list(path), wanted].sum() for path, score in plain_paths(x, weights, len(wanted))]
        loss = loss - torch.stack(terms).logsumexp(0)
    return loss


@pytest.mark.parametrize(
    ("variant", "changes", "treatment"),
    [
        *((variant, {}, treatment) for variant in VARIANTS for treatment in (MASKED, MIXED)),
        *((preset, {}, treatment) for preset in PRESETS for treatment in NOT_MASKED),
        ("mae_lm", {"decoder_layers": 1}, MASKED),
        *(
            (variant, {"decoder_layers": 3}, MASKED)
            for variant in ("mae_lm", "mae_lm_cross", "mae_lm_3ml_cross", "mae_lm_3ml_cross_pre_norm")
        ),
        ("mae_lm", {"relative_buckets": 0, "decoder_relative_buckets": 0}, MASKED),
        ("mae_lm", {"decoder_relative_buckets": 0}, MASKED),
        ("mae_lm_3ml_cross", {"decoder_relative_buckets": 0}, MASKED),
        ("mae_lm_3ml_cross", {"decoder_layers": 1}, MASKED),
        ("mae_lm_roberta", {"relative_buckets": 0}, MASKED),
        ("mae_lm_mask_later", {"mask_join_layer": 2}, MIXED),
    ],
)
def test_equals_a_plain_implementation(variant, changes, treatment):
    """Logits, cross-entropy and its gradients, of the order of 1; float32 sums in another order differ by 5e-6.

    Each row is computed alone, so that neither its padding nor the other rows matter.
    """
    model = network(variant, **changes).eval()
    tokens, targets, early = treated(treatment)
    layout, wanted = layout_for(tokens, targets, early), targets[targets.ne(PAD)]
    logits, expected = model(tokens, layout), plain_logits(model, tokens, targets, early)
    assert_close(logits, expected, 1e-5)
    ours, plain = (F.cross_entropy(scores, wanted, reduction="sum") for scores in (logits, expected))
    if variant not in EXPANDING:
        ours, _ = model.lm_head.loss(model.predicted_states(tokens, layout), wanted, layout)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=0)
    assert_same_gradients(model, ours, plain)


def assert_same_gradients(model, ours, plain):
    parameters = list(model.parameters())
    ours = torch.autograd.grad(ours, parameters)
    plain = torch.autograd.grad(plain, parameters, materialize_grads=True)
    for (name, _), a, b in zip(model.named_parameters(), ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("variant", EXPANDING)
def test_the_alignment_loss_equals_a_plain_implementation(variant):
    """Also with three ``[MASK]`` tokens in a row, which are 220 paths, and with none in another."""
    model = network(variant).double().eval()
    tokens, targets = masked(batch(text(9, 1), text(3, 2), text(14, 3)), [(0, 2), (0, 3), (2, 5), (2, 6), (2, 11)])
    layout = batch_layout(tokens, targets.ne(PAD), PAD, MASK, needs=model.needs())
    loss, _ = model.lm_head.loss(model.predicted_states(tokens, layout), targets[targets.ne(PAD)], layout)
    expected = plain_alignment_loss(model, tokens[[0, 2]], targets[[0, 2]])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)  # scores and logits are float32
    assert_same_gradients(model, loss, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_early_masks_go_through_the_encoder(variant):
    model = network(variant).eval()
    tokens, targets, early = treated(MASKED)
    early[0, 3] = early[2, 5] = early[2, 6] = early[1, 9] = True  # the last two are a word and padding
    logits = model(tokens, layout_for(tokens, targets, early))
    assert_close(logits, plain_logits(model, tokens, targets, early), 1e-5)
    without = model(tokens, layout_for(tokens, targets))
    assert torch.equal(logits, without) is (model.config.mask_join is MaskJoin.embeddings)
    nothing = torch.zeros_like(early)
    assert torch.equal(model(tokens, layout_for(tokens, targets, nothing)), without)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_reads_the_layouts_that_it_needs_and_no_others(variant):
    model = network(variant).eval()
    tokens, targets, _ = treated(MASKED)
    layout = batch_layout(tokens, targets.ne(PAD), PAD, MASK, needs=model.needs())
    everything = layout_for(tokens, targets)
    assert torch.equal(model(tokens, layout), model(tokens, everything))
    for name in NEEDED_BY_SOME - model.needs():
        assert getattr(layout, name) is None
    for name in model.needs():
        with pytest.raises(AttributeError, match="NoneType"):
            model(tokens, everything._replace(**{name: None}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prediction_does_not_depend_on_what_else_is_predicted(variant):
    model = network(variant).eval()
    tokens, targets = masked(batch(text(9, 1), text(12, 2)), [(0, 2), (0, 5), (1, 3)])
    expected = model(tokens, layout_for(tokens, targets))
    everywhere = model(tokens, layout_for(tokens, tokens))[targets[tokens.ne(PAD)].ne(PAD)]
    assert_close(everywhere, expected, 1e-5)
    targets[0, 2] = PAD
    assert_close(model(tokens, layout_for(tokens, targets)), expected[1:], 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layouts_of_the_encoder_are_those_of_the_states_of_its_layers(variant):
    model = network(variant).eval()
    tokens, targets, early = treated(MIXED)
    layout = layout_for(tokens, targets, early)
    states = model.encode(tokens, layout)
    assert len(states) == 1 + model.config.encoder_layers
    assert [part.index.numel() for part in model.encoder_layouts(layout)] == [len(state) for state in states]


@pytest.mark.parametrize("variant", [name for name in VARIANTS if config(name).layers_before_masks])
def test_masks_do_not_influence_states_of_visible_tokens(variant):
    """Neither their number nor their original tokens, below the layer at which they join."""
    model = network(variant).eval()
    original = text(12, 1)
    tokens, targets = masked(batch(original), [(0, 4), (0, 11), (0, 10)])
    shorter, others = tokens[:, :10], targets[:, :10]
    below = model.config.layers_before_masks + 1
    states = model.encode(tokens, layout_for(tokens, targets))[:below]
    fewer = model.encode(shorter, layout_for(shorter, others))[:below]
    for a, b in zip(states, fewer, strict=True):
        assert a.shape == (9, 16)
        assert_close(a, b, 1e-6)


def test_without_masks_both_presets_have_the_same_encoder():
    tokens = batch(text(11, 1), text(4, 2), text(17, 3))
    layout = layout_for(tokens, torch.full_like(tokens, PAD))
    mae_lm, roberta = network("mae_lm").eval(), network("mae_lm_roberta", seed=1).eval()
    roberta.encoder.load_state_dict(mae_lm.encoder.state_dict())
    assert torch.equal(mae_lm.encode(tokens, layout)[-1], roberta.encode(tokens, layout)[-1])


def test_shared_positions_are_one_table():
    model = network("mae_lm_share_positions")
    assert model.decoder.embed_positions is model.encoder.embed_positions
    assert sum(p.numel() for p in network().parameters()) - sum(p.numel() for p in model.parameters()) == 26 * 16


EDGES = {
    "one token": (batch([0]), []),
    "one masked token": (batch([0]), [(0, 0)]),
    "no masked token": (batch(text(6), text(3)), []),
    "only masked tokens": (batch(text(3), text(2)), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]),
    "a row of masks beside an ordinary one": (batch(text(3), text(4)), [(0, 0), (0, 1), (0, 2), (1, 2)]),
    "an all-padding row": (torch.tensor([[0, 5, 6, EOS], [PAD] * 4]), [(0, 1)]),
    "nothing but padding": (torch.full((2, 3), PAD), []),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("edge", EDGES)
def test_edge_cases_have_finite_losses_and_gradients(variant, edge):
    model = network(variant, dropout=0.1, attention_dropout=0.1).train()
    tokens, targets = masked(*EDGES[edge])
    logits = model(tokens, layout_for(tokens, targets))
    assert logits.shape == (len(EDGES[edge][1]), 30)
    loss = F.cross_entropy(logits, targets[targets.ne(PAD)], reduction="sum")
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_only_texts_longer_than_the_position_table_are_refused():
    model = network()
    for length in (24, 25):
        tokens = batch(text(length))
        layout = layout_for(tokens, torch.full_like(tokens, PAD))
        if length == 24:
            assert model.encode(tokens, layout)[-1].shape == (24, 16)
        else:
            with pytest.raises(ValueError, match=r"25 .* max_positions 24"):
                model.encode(tokens, layout)


def test_dropout_options_act_in_their_part_of_the_network():
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_activation_checkpointing_only_changes_memory(variant):
    """Dropout is on: recomputed layers must draw the same dropout masks."""
    tokens, targets = masked(batch(text(20, 1), text(17, 2)), [(0, 4), (1, 2)])
    layout = layout_for(tokens, targets)
    outcomes = []
    for checkpointed in (False, True):
        model = network(variant, **({"decoder_dropout": 0.1} if config(variant).decoder_layers else {}))
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
    assert len(model.stacks()) == (2 if model.config.decoder_layers else 1)
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_weight_keeps_what_was_in_memory(variant, memory_without_values):
    for name, value in network(variant).state_dict().items():
        assert value.isfinite().all(), name


@pytest.fixture
def memory_without_values():
    """Fill new tensors without a value with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def test_relative_bias_init_changes_only_both_bias_tables():
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


@pytest.mark.parametrize("variant", ["mae_lm", "mae_lm_roberta", "mae_lm_3ml_cross"])
def test_layer_norm_eps_is_that_of_every_layer_norm(variant):
    model = network(variant, layer_norm_eps=0.01)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {0.01}


def test_untied_output_weights_are_separate_and_trained():
    model = network(untie_output_weights=True).eval()
    assert model.lm_head.weight is not model.encoder.embed_tokens.weight
    assert model.lm_head.weight.std().item() == pytest.approx(0.2, rel=0.1)
    tokens, targets = masked(batch(text(9)), [(0, 3)])
    layout = layout_for(tokens, targets)
    states = model.predicted_states(tokens, layout)
    logits = model(tokens, layout)
    torch.testing.assert_close(logits, model.lm_head.transform(states) @ model.lm_head.weight.T + model.lm_head.bias)
    loss, _ = model.lm_head.loss(states, targets[targets.ne(PAD)])
    loss.backward()
    assert model.lm_head.weight.grad.any()
    unused = targets.new_tensor([token for token in range(30) if token not in tokens])
    assert not model.encoder.embed_tokens.weight.grad[unused].any()


def test_networks_with_the_same_encoder_start_from_the_same_weights():
    """In encoder and head, so that comparisons of decoders are paired."""
    expected = network("mae_lm_roberta").state_dict()
    for other in (network(), network("mae_lm_3ml_cross"), network(decoder_share_positions=True)):
        weights = other.state_dict()
        assert_equal({name: weights[name] for name in expected}, expected)
        assert weights.keys() > expected.keys()
