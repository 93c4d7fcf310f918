"""Decoders of three layers: those of two have a first and a last one only."""

import pytest
import torch

from tests.core.test_autoencoder import MASKED, plain_logits, treated
from tests.support.networks import layout_for, network


@pytest.mark.parametrize("variant", ["mae_lm", "mae_lm_cross", "mae_lm_3ml_cross", "mae_lm_3ml_cross_pre_norm"])
def test_every_layer_attends_to_the_states_below_it(variant):
    """Float32 sums in another order differ by 5e-6."""
    model = network(variant, decoder_layers=3).eval()
    tokens, targets, early = treated(MASKED)
    logits = model(tokens, layout_for(tokens, targets, early))
    torch.testing.assert_close(logits, plain_logits(model, tokens, targets, early), rtol=0, atol=1e-5)
