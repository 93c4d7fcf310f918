"""FLOP formulas against torch's FLOP counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops, head_flops, layer_flops
from tests.support.networks import MASK, PAD, VARIANTS, VOCABULARY, layout_for, network

# Large enough that the operations which the formulas ignore are negligible.
WIDE = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 256, "max_positions": 48, "attention_dropout": 0.0}


def corrupted(masked: int, early: int, visible_and_predicted: int):
    """Return four rows of 40 tokens with the given numbers of masked, early-masked and visible predicted tokens."""
    tokens = torch.randint(4, MASK, (4, 40), generator=torch.Generator().manual_seed(0))
    targets, early_masks = torch.full_like(tokens, PAD), torch.zeros_like(tokens, dtype=torch.bool)
    predicted = masked + visible_and_predicted
    targets[:, :predicted] = tokens[:, :predicted]
    tokens[:, :masked] = MASK
    early_masks[:, :early] = True
    return tokens, targets, early_masks


@pytest.mark.parametrize("masked", [6, 20])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_of_every_variant(variant, masked):
    early, extra = (3, 2) if "reset" in variant else (0, 0)
    changes = {"decoder_embed_dim": 32} if variant == "mae_lm_narrow" else {}
    model = network(variant, **WIDE, **changes)
    tokens, targets, early_masks = corrupted(masked, early, extra)
    layout = layout_for(tokens, targets, early_masks)
    with FlopCounterMode(display=False) as counter:
        loss, _ = model.lm_head.loss(model.predicted_states(tokens, layout), targets[targets.ne(PAD)], layout)
        loss.backward()
    positions = Positions(40, 40 - masked + early, masked + extra)
    flops = forward_flops(model.config, VOCABULARY, [positions] * 4)
    assert counter.get_total_flops() == pytest.approx(TRAINING * flops.total, rel=0.02)
    assert (flops.decoder > 0) is (model.config.decoder_layers > 0)


def test_formula_by_hand():
    assert layer_flops(4, 16, queries=3, keys=3) == 3 * (24 * 4**2 + 4 * 3 * 4)
    assert head_flops(4, 100, 2) == 2 * (2 * 4**2 + 2 * 4 * 100)
    shape = {"encoder_embed_dim": 32, "encoder_ffn_embed_dim": 128, "encoder_attention_heads": 2}
    config = MaskedAutoencoderConfig(encoder_layers=2, decoder_layers=2, **shape)
    flops = forward_flops(config, 100, [Positions(16, 14, 2)])
    assert flops.encoder == 2 * layer_flops(32, 128, 14, 14)
    assert flops.decoder == layer_flops(32, 128, 16, 16) + layer_flops(32, 128, 2, 16)
    assert forward_flops(config, 100, [Positions(16, 14, 2, decoded=16)]).decoder == 2 * layer_flops(32, 128, 16, 16)
    assert flops.total == flops.encoder + flops.decoder + head_flops(32, 100, 2)
    assert forward_flops(config, 100, []).total == 0
