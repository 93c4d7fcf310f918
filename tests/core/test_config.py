"""Presets, and contradictions that the configuration refuses by option name."""

import math
from dataclasses import fields

import pytest

from mae_lm_fairseq.core.config import (
    PRESETS,
    SIZES,
    MaskedAutoencoderConfig,
    MaskJoin,
    RelativeBucketing,
    preset_config,
)

DIFFERENCES = {
    "mae_lm": set(),
    "mae_lm_roberta": {"mask_join", "decoder_layers", "decoder_relative_buckets"},
    "mae_lm_3ml_self": {"decoder_layers"},
    "mae_lm_3ml_cross": {"decoder_layers", "decoder_attention"},
    "mae_lm_mask_later": {"mask_join", "decoder_layers", "decoder_relative_buckets"},
    "mae_lm_exlm": {"mask_join", "mask_states", "decoder_layers", "decoder_relative_buckets"},
    "mae_lm_exlm_decoder": {"mask_states"},
}


@pytest.mark.parametrize("option", fields(MaskedAutoencoderConfig), ids=lambda option: option.name)
def test_options_have_a_default_of_their_type_and_a_help(option):
    assert isinstance(option.default, option.type)
    assert isinstance(option.metadata["help"], str)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_presets_of_a_size_differ_only_in_mask_handling(preset, size):
    mae_lm, other = (vars(preset_config(name, size)) for name in ("mae_lm", preset))
    assert {name for name in mae_lm if mae_lm[name] != other[name]} <= DIFFERENCES[preset]


def test_base_and_large_have_the_sizes_of_bert():
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    sizes = {size: [getattr(preset_config("mae_lm", size), name) for name in names] for size in ("base", "large")}
    assert sizes == {"base": [12, 768, 3072, 12], "large": [24, 1024, 4096, 16]}


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_small_sizes_are_scaled_as_base(size):
    """Initial weights have a standard deviation that falls with the root of the hidden size."""
    config = preset_config("mae_lm", size)
    assert config.encoder_ffn_embed_dim == 4 * config.encoder_embed_dim
    assert config.init_std == round(0.02 * math.sqrt(768 / config.encoder_embed_dim), 3)


def test_layers_before_masks_of_each_preset():
    layers = {preset: preset_config(preset, "base").layers_before_masks for preset in PRESETS}
    assert layers == {
        "mae_lm_roberta": 0,
        "mae_lm_exlm": 0,
        "mae_lm_exlm_decoder": 12,
        "mae_lm_mask_later": 6,
        "mae_lm_3ml_self": 12,
        "mae_lm_3ml_cross": 12,
        "mae_lm": 12,
    }
    later = preset_config("mae_lm_mask_later", "base", mask_join_layer=9)
    assert later.layers_before_masks == 9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoder_layers": 10_001}, ["encoder_layers 10001"]),
        (
            {"encoder_embed_dim": 100, "encoder_attention_heads": 12},
            ["encoder_embed_dim 100", "encoder_attention_heads 12"],
        ),
        ({"decoder_layers": 0}, ["mask_join decoder", "decoder_layers 0"]),
        ({"preset": "mae_lm_roberta", "decoder_layers": 2}, ["mask_join embeddings", "decoder_layers 2"]),
        (
            {"preset": "mae_lm_roberta", "decoder_relative_buckets": 32},
            ["decoder_relative_buckets", "decoder_layers 0"],
        ),
        ({"relative_buckets": 6}, ["relative_buckets 6"]),
        ({"relative_buckets": 32, "relative_max_distance": 8}, ["relative_max_distance 8", "relative_buckets 32"]),
        (
            {"relative_bucketing": RelativeBucketing.symmetric, "relative_buckets": 32, "relative_max_distance": 9},
            ["relative_max_distance 9", "relative_bucketing symmetric"],
        ),
        (
            {"relative_bucketing": RelativeBucketing.symmetric, "relative_buckets": 0},
            ["relative_bucketing", "relative_buckets 0"],
        ),
        ({"dropout": 1.0}, ["dropout 1.0"]),
        ({"attention_dropout": -0.1}, ["attention_dropout -0.1"]),
        ({"mask_join_layer": 3}, ["mask_join_layer 3", "mask_join decoder"]),
        ({"preset": "mae_lm_roberta", "mask_join_layer": 3}, ["mask_join_layer 3", "mask_join embeddings"]),
        ({"preset": "mae_lm_mask_later", "mask_join_layer": 12}, ["mask_join_layer 12", "encoder_layers 12"]),
        ({"preset": "mae_lm_mask_later", "encoder_layers": 1}, ["mask_join_layer 0", "encoder_layers 1"]),
        ({"preset": "mae_lm_mask_later", "decoder_layers": 2}, ["mask_join encoder", "decoder_layers 2"]),
        ({"mask_join": MaskJoin.encoder}, ["mask_join encoder", "decoder_layers 4"]),
        ({"mask_states": 0}, ["mask_states 0"]),
        ({"preset": "mae_lm_mask_later", "mask_states": 2}, ["mask_states 2", "mask_join encoder"]),
        ({"preset": "mae_lm_3ml_cross", "mask_states": 2}, ["mask_states 2", "decoder_attention self_cross"]),
        ({"preset": "mae_lm_mask_later", "renumber_visible": True}, ["renumber_visible", "mask_join encoder"]),
        ({"preset": "mae_lm_roberta", "renumber_visible": True}, ["renumber_visible", "mask_join embeddings"]),
        *(
            ({"preset": "mae_lm_roberta", name: value}, [name, "decoder_layers 0"])
            for name, value in (
                ("decoder_attention", "cross"),
                ("decoder_embed_dim", 512),
                ("decoder_ffn_embed_dim", 512),
                ("decoder_attention_heads", 8),
                ("decoder_share_positions", True),
                ("decoder_dropout", 0.1),
                ("reset_mask_states", True),
            )
        ),
        ({"decoder_embed_dim": 512}, ["decoder_embed_dim 512", "decoder_attention_heads 12"]),
        ({"decoder_attention_heads": 7}, ["decoder_embed_dim 768", "decoder_attention_heads 7"]),
        (
            {"decoder_embed_dim": 384, "decoder_share_positions": True},
            ["decoder_share_positions", "decoder_embed_dim 384", "encoder_embed_dim 768"],
        ),
        ({"max_positions": 2}, ["max_positions 2"]),
        ({"decoder_embed_dim": 0}, ["decoder_embed_dim 0"]),
        ({"max_positions": 1 << 25}, ["max_positions 33554432"]),
        ({"decoder_attention": "slef"}, ["decoder_attention slef", "self_cross"]),
        ({"init_std": 0.0}, ["init_std 0.0"]),
        ({"layer_norm_eps": 1.0}, ["layer_norm_eps 1.0"]),
    ],
)
def test_contradictions_name_the_options(changes, named):
    preset = changes.pop("preset", "mae_lm")
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the loop below matches the message
        preset_config(preset, "base", **changes)
    for option in named:
        assert option in str(refusal.value)
