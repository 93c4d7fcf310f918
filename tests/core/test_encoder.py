"""Independence of hidden states and gradients from the rest of the batch."""

import pytest
import torch

from tests.support.networks import MASK, PAD, VARIANTS, batch, layout_for, masked, network, text

ROWS = [text(11, seed=1), text(4, seed=2), text(17, seed=3), text(1, seed=4)]
# The last row consists of masks only.
PLACES = [(0, 2), (0, 3), (0, 9), (1, 0), (2, 5), (2, 16), (3, 0)]


def corrupted_rows():
    tokens, targets = masked(batch(*ROWS), PLACES)
    return [(tokens[i, : len(row)], targets[i, : len(row)]) for i, row in enumerate(ROWS)]


def encode(model, tokens, targets):
    layout = layout_for(tokens, targets)
    return model.encode(tokens, layout)[-1]


def logits_and_gradients(model, batches):
    """Return the concatenated logits of all batches, and the gradients of their summed cross-entropy."""
    model.zero_grad()
    collected = []
    for tokens, targets in batches:
        logits = model(tokens, layout_for(tokens, targets))
        loss = torch.nn.functional.cross_entropy(logits, targets[targets.ne(PAD)], reduction="sum")
        loss.backward()
        collected.append(logits.detach())
    return torch.cat(collected), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_do_not_depend_on_padding_or_order(variant):
    model = network(variant).eval()
    rows = corrupted_rows()
    alone = [encode(model, tokens[None], targets[None]) for tokens, targets in rows]
    for order in ([0, 1, 2, 3], [3, 2, 0, 1]):
        tokens = batch(*(rows[i][0] for i in order))
        targets = batch(*(rows[i][1] for i in order))
        together = encode(model, tokens, targets)
        torch.testing.assert_close(together, torch.cat([alone[i] for i in order]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_do_not_depend_on_padding(variant):
    model = network(variant).eval()
    rows = corrupted_rows()
    one_by_one = [(tokens[None], targets[None]) for tokens, targets in rows]
    together = (batch(*(tokens for tokens, _ in rows)), batch(*(targets for _, targets in rows)))
    padded = tuple(torch.nn.functional.pad(part, (0, 5), value=PAD) for part in together)
    expected_logits, expected = logits_and_gradients(model, one_by_one)
    for batches in ([together], [padded]):
        logits, gradients = logits_and_gradients(model, batches)
        torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, expected[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_mae_lm_encoder_has_no_state_for_masks_and_roberta_has():
    tokens, targets = masked(batch(text(9)), [(0, 3), (0, 4)])
    assert encode(network("mae_lm"), tokens, targets).shape == (7, 16)
    assert encode(network("mae_lm_roberta"), tokens, targets).shape == (9, 16)


def test_without_masks_both_presets_have_the_same_encoder():
    tokens = batch(*ROWS)
    mae_lm, roberta = network("mae_lm").eval(), network("mae_lm_roberta", seed=1).eval()
    roberta.encoder.load_state_dict(mae_lm.encoder.state_dict())
    nothing = torch.full_like(tokens, PAD)
    assert torch.equal(encode(mae_lm, tokens, nothing), encode(roberta, tokens, nothing))


def test_one_state_per_layer_and_the_embeddings():
    tokens = batch(*ROWS)
    model = network("mae_lm").eval()
    states = model.encode(tokens, layout_for(tokens, torch.full_like(tokens, PAD)))
    assert [tuple(state.shape) for state in states] == [(33, 16)] * 4
    assert not torch.equal(states[-1], states[-2])


def test_no_gradient_reaches_the_mask_embedding_through_mae_lms_encoder():
    tokens, targets = masked(batch(*ROWS), PLACES)
    for preset, touched in (("mae_lm", False), ("mae_lm_roberta", True)):
        model = network(preset)
        encode(model, tokens, targets).square().sum().backward()
        gradient = model.encoder.embed_tokens.weight.grad
        assert bool(gradient[MASK].any()) is touched
        assert gradient[5].any()
