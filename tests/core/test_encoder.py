"""Independence of hidden states and gradients from the rest of the batch."""

import pytest
import torch

from tests.support.networks import PAD, VARIANTS, batch, layout_for, masked, network, text

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


def test_without_masks_both_presets_have_the_same_encoder():
    tokens = batch(*ROWS)
    mae_lm, roberta = network("mae_lm").eval(), network("mae_lm_roberta", seed=1).eval()
    roberta.encoder.load_state_dict(mae_lm.encoder.state_dict())
    nothing = torch.full_like(tokens, PAD)
    assert torch.equal(encode(mae_lm, tokens, nothing), encode(roberta, tokens, nothing))
