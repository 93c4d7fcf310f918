"""Pretrained models with the decoder and the head of another preset."""

import pytest
import torch

from mae_lm_fairseq.checkpoints.presets import predicts, preset_of, with_preset
from mae_lm_fairseq.checkpoints.reading import build
from mae_lm_fairseq.checkpoints.validation import check_fit
from mae_lm_fairseq.core.config import PRESETS
from tests.support.exports import pretrained

DECODER = "autoencoder.decoder."


@pytest.mark.parametrize("target", PRESETS)
@pytest.mark.parametrize("source", PRESETS)
def test_encoder_and_head_are_kept_and_the_decoder_if_the_preset_is(source, target):
    before = pretrained(source)
    before.about["mask_in_encoder"] = 0.5
    after = with_preset(before, target, seed=1)
    check_fit(after.config, after.weights, len(after.symbols), "test")
    assert preset_of(after) == target
    assert build(after).lm_head is not None
    kept = {name for name in before.weights if source == target or not name.startswith(DECODER)}
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in kept)
    assert {name for name in after.weights.keys() - kept if not name.startswith(DECODER)} == set()
    assert after.mask_in_encoder == (0.5 if source == target else 0)
    assert (after.config == before.config) or source != target


def test_a_fine_tuned_model_gets_a_new_head_and_loses_its_own():
    before = pretrained(heads=["task"])
    assert not predicts(before)
    one, same, other = (with_preset(before, "mae_lm", seed) for seed in (1, 1, 2))
    check_fit(one.config, one.weights, len(one.symbols), "test")
    assert predicts(one)
    new = "autoencoder.lm_head.dense.weight"
    assert torch.equal(one.weights[new], same.weights[new])
    assert not torch.equal(one.weights[new], other.weights[new])


@pytest.mark.parametrize("part", ["lm_head", "decoder"])
def test_a_model_with_random_weights_predicts_nothing(part):
    model = pretrained()
    assert predicts(model)
    model.about["random_weights"] = [part]
    assert not predicts(model)
