"""Equality with the code of MAE-LM's authors: loss and gradients for their weights and batch.

The numbers in tests/fixtures/authors were computed by github.com/yumeng5/MAE-LM at 153ffe9 in float64, apart from its
softmax and its loss, which are float32. So 1e-6 is the best that can be asked for.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, RelativeBucketing
from mae_lm_fairseq.core.packing import batch_layout

FIXTURES = Path(__file__).parents[1] / "fixtures/authors"
TOLERANCE = 1e-6
CONFIG = MaskedAutoencoderConfig(
    encoder_layers=2,
    decoder_layers=2,
    encoder_embed_dim=16,
    encoder_ffn_embed_dim=32,
    encoder_attention_heads=2,
    max_positions=24,
    relative_buckets=0,
    dropout=0.0,
    attention_dropout=0.0,
)
CONFIGS = {
    "rel0": CONFIG,
    "rel1": replace(
        CONFIG, relative_buckets=16, relative_max_distance=16, relative_bucketing=RelativeBucketing.symmetric
    ),
}
RENAMED = {
    "sentence_encoder.": "",
    "gen_decoder.lm_head": "lm_head",
    "gen_decoder": "decoder",
    "emb_layer_norm": "embed_layer_norm",
    "self_attn_layer_norm": "attention_layer_norm",
    "self_attn": "attention",
    "relative_attention_bias": "relative_bias",
}
"""Parts of the authors' parameter names, and ours; replaced in this order."""


@pytest.fixture(params=CONFIGS)
def case(request) -> tuple[dict[str, torch.Tensor], MaskedAutoencoderConfig]:
    """The authors' numbers and the configuration that they belong to."""
    return load_file(FIXTURES / f"authors_{request.param}.safetensors"), CONFIGS[request.param]


def parameters(numbers: dict[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    """Return weights or gradients under our names. The rows that only our position tables have are zero."""
    renamed = {}
    for name, values in numbers.items():
        if name.startswith(f"{kind}/"):
            name = name.removeprefix(f"{kind}/")
            for theirs, ours in RENAMED.items():
                name = name.replace(theirs, ours)
            renamed[name] = functional.pad(values, (0, 0, 2, 0)) if "embed_positions" in name else values
    for name in [name for name in renamed if ".q_proj." in name]:
        parts = [renamed.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        renamed[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    return renamed


def largest_difference(numbers: dict[str, torch.Tensor], config: MaskedAutoencoderConfig, change=None) -> float:
    """Return the largest relative difference of the loss, and of each gradient in units of its largest element."""
    pad, mask, vocabulary = numbers["ids"].tolist()
    network = MaskedAutoencoder(config, vocabulary, pad, mask).double()
    weights = parameters(numbers, "weight")
    network.load_state_dict(weights | {"lm_head.weight": weights["encoder.embed_tokens.weight"]})  # tied
    if change is not None:
        change(network, mask)
    tokens, is_masked = numbers["tokens"], numbers["is_masked"]
    layout = batch_layout(tokens.masked_fill(is_masked, mask), is_masked, pad, mask)
    logits = network(tokens.masked_fill(is_masked, mask), layout)
    loss = functional.cross_entropy(logits, tokens[is_masked], reduction="sum")
    loss.backward()
    differences = [abs(loss.item() / numbers["loss"].item() - 1)]
    ours, theirs = dict(network.named_parameters()), parameters(numbers, "gradient")
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        # The bias of the keys has no effect, so both gradients are rounding: the scale is that of all three biases.
        differences.append(((ours[name].grad - gradient).abs().max() / gradient.abs().max()).item())
    return max(differences)


def test_loss_and_gradients_are_equal(case):
    assert largest_difference(*case) < TOLERANCE


@pytest.mark.parametrize(
    "change",
    [{"relative_bucketing": RelativeBucketing.t5}, {"decoder_dropout": 0.1}, {"renumber_visible": True}],
)
def test_other_settings_differ(change):
    torch.manual_seed(0)
    numbers = load_file(FIXTURES / "authors_rel1.safetensors")
    assert largest_difference(numbers, replace(CONFIGS["rel1"], **change)) > 100 * TOLERANCE


def test_mask_embedding_matters(case):
    def change(network: MaskedAutoencoder, mask: int):
        network.encoder.embed_tokens.weight.data[mask] += 0.01

    assert largest_difference(*case, change) > 100 * TOLERANCE
