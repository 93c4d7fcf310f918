"""Equality of the encoder with stock models of equal weights.

They are MPNetModel with the T5 bias, RobertaModel without it, and RobertaPreLayerNormModel in pre-norm.
"""

import pytest
import torch
from transformers import (
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
)

from tests.support.networks import PAD, VOCABULARY, batch, layout_for, network, text

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 26,
    "layer_norm_eps": 1e-5,
    "pad_token_id": PAD,
}


def copy_linear(target, weight, bias):
    target.weight.data.copy_(weight)
    target.bias.data.copy_(bias)


def copy_encoder(encoder, stock, attention_of, projections, feed_forward_norm="output"):
    """Copy our encoder's weights into a stock BERT-like model with the given names of attention modules."""
    stock.embeddings.word_embeddings.weight.data.copy_(encoder.embed_tokens.weight)
    stock.embeddings.position_embeddings.weight.data.copy_(encoder.embed_positions.weight)
    copy_linear(stock.embeddings.LayerNorm, encoder.embed_layer_norm.weight, encoder.embed_layer_norm.bias)
    for ours, theirs in zip(encoder.layers, stock.encoder.layer, strict=True):
        attention, output, norm = attention_of(theirs)
        qkv = ours.attention.qkv_proj
        for name, weight, bias in zip(projections, qkv.weight.chunk(3), qkv.bias.chunk(3), strict=True):
            copy_linear(getattr(attention, name), weight, bias)
        for target, source in (
            (output, ours.attention.out_proj),
            (norm, ours.attention_layer_norm),
            (theirs.intermediate.dense, ours.fc1),
            (theirs.output.dense, ours.fc2),
            (getattr(theirs, feed_forward_norm).LayerNorm, ours.final_layer_norm),
        ):
            copy_linear(target, source.weight, source.bias)


def stock_mpnet(encoder):
    stock = MPNetModel(MPNetConfig(**SHAPE), add_pooling_layer=False).eval()
    copy_encoder(
        encoder, stock, lambda layer: (layer.attention.attn, layer.attention.attn.o, layer.attention.LayerNorm), "qkv"
    )
    stock.encoder.relative_attention_bias.weight.data.copy_(encoder.relative_bias.weight)
    return stock


def stock_roberta(encoder):
    stock = RobertaModel(RobertaConfig(**SHAPE, type_vocab_size=1), add_pooling_layer=False).eval()
    stock.embeddings.token_type_embeddings.weight.data.zero_()
    copy_encoder(
        encoder,
        stock,
        lambda layer: (layer.attention.self, layer.attention.output.dense, layer.attention.output.LayerNorm),
        ("query", "key", "value"),
    )
    return stock


def stock_pre_norm(encoder):
    stock = RobertaPreLayerNormModel(RobertaPreLayerNormConfig(**SHAPE, type_vocab_size=1), add_pooling_layer=False)
    stock.embeddings.token_type_embeddings.weight.data.zero_()
    copy_encoder(
        encoder,
        stock,
        lambda layer: (layer.attention.self, layer.attention.output.dense, layer.attention.LayerNorm),
        ("query", "key", "value"),
        "intermediate",
    )
    copy_linear(stock.LayerNorm, encoder.output_layer_norm.weight, encoder.output_layer_norm.bias)
    return stock.eval()


@pytest.mark.parametrize(
    ("changes", "stock_of"),
    [
        ({"relative_buckets": 32}, stock_mpnet),
        ({"relative_buckets": 0}, stock_roberta),
        ({"relative_buckets": 0, "pre_norm": True}, stock_pre_norm),
    ],
)
def test_states_of_every_layer_equal_the_stock_models(changes, stock_of):
    model = network("mae_lm", **changes).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # so that no norm is like another
                weight.add_(0.3 * torch.randn_like(weight))
    tokens = batch(text(12, 1), text(5, 2), text(20, 3))
    states = model.encode(tokens, layout_for(tokens, torch.full_like(tokens, PAD)))
    present = tokens.ne(PAD)
    theirs = stock_of(model.encoder)(tokens, attention_mask=present.long(), output_hidden_states=True).hidden_states
    assert len(states) == len(theirs)
    for ours, stock in zip(states, theirs, strict=True):
        torch.testing.assert_close(ours, stock[present], rtol=0, atol=1e-5)
