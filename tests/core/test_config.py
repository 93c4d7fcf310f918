"""The size table, and the contradictions that the configuration refuses by name."""

import pytest

from mae_lm_fairseq.core.config import PRESETS, SIZES, MaskedAutoencoderConfig, preset_values


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ("tiny", (4, 128, 512, 4, 2)),
        ("small", (4, 256, 1024, 4, 4)),
        ("base", (12, 768, 3072, 12, 4)),
        ("large", (24, 1024, 4096, 16, 4)),
    ],
)
def test_sizes(size, shape):
    config = MaskedAutoencoderConfig(**preset_values("mae_lm", size))
    assert shape == (
        config.encoder_layers,
        config.encoder_embed_dim,
        config.encoder_ffn_embed_dim,
        config.encoder_attention_heads,
        config.decoder_layers,
    )


def test_presets_of_a_size_differ_in_where_the_masks_join_alone():
    for size in SIZES:
        mae_lm, roberta = (vars(MaskedAutoencoderConfig(**preset_values(preset, size))) for preset in PRESETS)
        different = {name for name in mae_lm if mae_lm[name] != roberta[name]}
        assert different <= {"mask_join", "decoder_layers", "decoder_relative_buckets"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"encoder_layers": 0}, ["--encoder-layers 0"]),
        (
            {"encoder_embed_dim": 100, "encoder_attention_heads": 12},
            ["--encoder-embed-dim 100", "--encoder-attention-heads 12"],
        ),
        ({"decoder_layers": 0}, ["--mask-join decoder", "--decoder-layers 0"]),
        ({"preset": "mae_lm_roberta", "decoder_layers": 2}, ["--mask-join embeddings", "--decoder-layers 2"]),
        (
            {"preset": "mae_lm_roberta", "decoder_relative_buckets": 32},
            ["--decoder-relative-buckets", "--decoder-layers 0"],
        ),
        ({"relative_buckets": 6}, ["--relative-buckets 6"]),
        ({"relative_buckets": 32, "relative_max_distance": 8}, ["--relative-max-distance 8", "--relative-buckets 32"]),
        ({"dropout": 1.0}, ["--dropout 1.0"]),
        ({"attention_dropout": -0.1}, ["--attention-dropout -0.1"]),
        ({"max_positions": 0}, ["--max-positions 0"]),
        ({"init_std": 0.0}, ["--init-std 0.0"]),
    ],
)
def test_contradictions_name_the_options(changes, named):
    preset = changes.pop("preset", "mae_lm")
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the loop below matches the message
        MaskedAutoencoderConfig(**{**preset_values(preset, "base"), **changes})
    for option in named:
        assert option in str(refusal.value)
