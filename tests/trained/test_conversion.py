"""Pretrained models with the decoder and the head of another preset."""

import pytest
import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import PRESETS, preset_config
from mae_lm_fairseq.trained.conversion import new_decoder, predicts, preset_of, with_preset
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.trained.validation import check_fit
from tests.support.comparisons import assert_equal
from tests.support.exports import pretrained, with_facts

OF_PRESET = tuple(f"autoencoder.{name}." for name in ("decoder", "encoder.embed_clones", "lm_head.transitions"))


@pytest.mark.parametrize("target", PRESETS)
@pytest.mark.parametrize("source", PRESETS)
def test_encoder_and_head_are_kept_and_the_decoder_if_the_preset_is(source, target):
    before = with_facts(pretrained(source), mask_in_encoder=0.5)
    after = with_preset(before, target, seed=1)
    check_fit(after.config, after.weights, len(after.symbols))
    assert preset_of(after) == target
    assert build(after).lm_head is not None
    kept = {name for name in before.weights if source == target or not name.startswith(OF_PRESET)}
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in kept)
    assert {name for name in after.weights.keys() - kept if not name.startswith(OF_PRESET)} == set()
    assert after.mask_in_encoder == (0.5 if source == target else 0)
    assert (after.config == before.config) or source != target


def test_a_fine_tuned_model_gets_a_new_head_and_loses_its_own():
    before = pretrained(heads=["task"])
    assert not predicts(before)
    model, same, other = (with_preset(before, "mae_lm", seed) for seed in (1, 1, 2))
    check_fit(model.config, model.weights, len(model.symbols))
    assert predicts(model)
    new = "autoencoder.lm_head.dense.weight"
    assert torch.equal(model.weights[new], same.weights[new])
    assert not torch.equal(model.weights[new], other.weights[new])


@pytest.mark.parametrize("part", ["lm_head", "decoder"])
def test_a_model_with_random_weights_predicts_nothing(part):
    model = pretrained()
    assert predicts(model)
    assert not predicts(with_facts(model, untrained=(part,)))


def test_a_new_decoder_starts_from_the_last_layers_of_the_encoder():
    model = with_preset(pretrained("mae_lm_roberta", {"encoder_layers": 3}), "mae_lm_3ml_self", seed=1)
    assert model.config.decoder_layers == 2
    encoder, decoder = build(model).encoder, build(model).decoder
    for ours, theirs in zip(decoder.layers, encoder.layers[1:], strict=True):
        for (name, weight), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(weight, other), name
    # The norm that the first of these layers reads.
    assert torch.equal(decoder.embed_layer_norm.weight, encoder.layers[0].final_layer_norm.weight)
    assert torch.equal(decoder.embed_positions.weight, encoder.embed_positions.weight)
    assert torch.equal(decoder.relative_bias.weight, encoder.relative_bias.weight)


@pytest.mark.parametrize("lost", ["fine-tuned", "imported"])
def test_a_decoder_that_was_not_trained_is_new_also_with_the_same_preset(lost):
    before = pretrained("mae_lm", {"encoder_layers": 3, "decoder_layers": 2, "decoder_relative_buckets": 0})
    if lost == "fine-tuned":
        decoder = [name for name in before.weights if name.startswith("autoencoder.decoder.")]
        for name in decoder:
            del before.weights[name]
    else:
        before = with_facts(before, untrained=("decoder",))
    model = build(with_preset(before, "mae_lm", seed=1))
    for ours, theirs in zip(model.decoder.layers, model.encoder.layers[1:], strict=True):
        assert_equal(ours.state_dict(), theirs.state_dict())
    assert torch.equal(model.decoder.relative_bias.weight, model.encoder.relative_bias.weight)


def test_a_new_decoder_has_the_encoders_buckets():
    model = with_preset(pretrained("mae_lm_roberta", {"encoder_layers": 4, "relative_buckets": 16}), "mae_lm", seed=1)
    assert model.config.decoder_relative_buckets == 16
    network = build(model)
    assert torch.equal(network.decoder.relative_bias.weight, network.encoder.relative_bias.weight)


def test_a_new_decoder_has_a_position_bias_of_its_own_if_the_encoder_has_none():
    model = with_preset(pretrained("mae_lm_roberta", {"relative_buckets": 0}), "mae_lm", seed=1)
    assert (model.config.decoder_layers, model.config.relative_buckets) == (4, 0)
    bias = build(model).decoder.relative_bias
    assert bias.weight.shape[0] == 32
    near, far = (bias.weight[bias.bucket[bias.reach + offset]].max() for offset in (1, 20))
    assert near > far + 0.5  # initialised as "neighbours"


def test_a_decoder_of_another_size_starts_from_random_weights():
    narrow = preset_config("mae_lm", "tiny", decoder_embed_dim=64, decoder_ffn_embed_dim=256, decoder_attention_heads=2)
    deep = preset_config("mae_lm", "tiny", decoder_layers=5)
    for config in (narrow, deep):
        with torch.random.fork_rng():
            weights = MaskedAutoencoder(config, 10, 1, 9).state_dict()
        _, decoder = new_decoder(config, {f"autoencoder.{name}": weight for name, weight in weights.items()})
        assert not decoder
