"""Table of weight names in this package, in ``transformers`` and in fairseq's RoBERTa.

The table is used in both directions, so that a round trip preserves every bit. Apart from names, one layout differs:
queries, keys and values are a single matrix here and three matrices elsewhere.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

LM_WEIGHT, LM_BIAS = "autoencoder.lm_head.weight", "autoencoder.lm_head.bias"
"""Our names of the language model head's weights that may be tied."""


class Names(NamedTuple):
    """Names of a module or weight. A name that ends in neither ``weight`` nor ``bias`` stands for both of them."""

    ours: str
    mpnet: str | None
    roberta: str | None
    roberta_prelayernorm: str | None
    bert: str | None
    distilbert: str | None
    fairseq: str | None


class Part(NamedTuple):
    """A part of a model: the prefix of its names, and the names after the prefix."""

    prefix: Names
    names: tuple[Names, ...]


EMBEDDINGS = Part(
    Names(
        "autoencoder.encoder.",
        "mpnet.embeddings.",
        "roberta.embeddings.",
        "roberta_prelayernorm.embeddings.",
        "bert.embeddings.",
        "distilbert.embeddings.",
        "encoder.sentence_encoder.",
    ),
    (
        Names("embed_tokens.weight", *["word_embeddings.weight"] * 5, "embed_tokens.weight"),
        Names("embed_positions.weight", *["position_embeddings.weight"] * 5, "embed_positions.weight"),
        Names("embed_layer_norm", *["LayerNorm"] * 5, "layernorm_embedding"),
    ),
)
RELATIVE_BIAS = Part(
    Names("autoencoder.encoder.", "mpnet.encoder.", *[None] * 5),
    (Names("relative_bias.weight", "relative_attention_bias.weight", *[None] * 5),),
)
# fmt: off
LAYER = Part(
    Names(
        "autoencoder.encoder.layers.{layer}.",
        "mpnet.encoder.layer.{layer}.",
        "roberta.encoder.layer.{layer}.",
        "roberta_prelayernorm.encoder.layer.{layer}.",
        "bert.encoder.layer.{layer}.",
        "distilbert.transformer.layer.{layer}.",
        "encoder.sentence_encoder.layers.{layer}.",
    ),
    (
        Names("attention.q_proj", "attention.attn.q", *["attention.self.query"] * 3, "attention.q_lin",
              "self_attn.q_proj"),
        Names("attention.k_proj", "attention.attn.k", *["attention.self.key"] * 3, "attention.k_lin",
              "self_attn.k_proj"),
        Names("attention.v_proj", "attention.attn.v", *["attention.self.value"] * 3, "attention.v_lin",
              "self_attn.v_proj"),
        Names("attention.out_proj", "attention.attn.o", *["attention.output.dense"] * 3, "attention.out_lin",
              "self_attn.out_proj"),
        Names("attention_layer_norm", "attention.LayerNorm", "attention.output.LayerNorm", "attention.LayerNorm",
              "attention.output.LayerNorm", "sa_layer_norm", "self_attn_layer_norm"),
        Names("fc1", *["intermediate.dense"] * 4, "ffn.lin1", "fc1"),
        Names("fc2", *["output.dense"] * 4, "ffn.lin2", "fc2"),
        Names("final_layer_norm", *["output.LayerNorm"] * 2, "intermediate.LayerNorm", "output.LayerNorm",
              "output_layer_norm", "final_layer_norm"),
    ),
)
OUTPUT_LAYER_NORM = Part(
    Names("autoencoder.encoder.", None, None, "roberta_prelayernorm.", None, None, None),
    (Names("output_layer_norm", None, None, "LayerNorm", None, None, None),),
)
_LM_HEAD = Names("autoencoder.lm_head.", *["lm_head."] * 3, "cls.predictions.", "", "encoder.lm_head.")
LM_HEAD = Part(
    _LM_HEAD,
    (
        Names("dense", *["dense"] * 3, "transform.dense", "vocab_transform", "dense"),
        Names("layer_norm", *["layer_norm"] * 3, "transform.LayerNorm", "vocab_layer_norm", "layer_norm"),
        Names("bias", *["bias"] * 4, "vocab_projector.bias", "bias"),
    ),
)
OUTPUT_WEIGHTS = Part(
    _LM_HEAD,
    (
        Names("weight", *["decoder.weight"] * 4, "vocab_projector.weight", "weight"),
        Names("bias", *["decoder.bias"] * 4, "vocab_projector.bias", "bias"),
    ),
)
"""Replaces the bias of the language model head if its weights are not tied to the token embeddings."""
CLASSIFICATION_HEAD = Part(
    Names("classification_heads.{head}.", *["classifier."] * 3, "", None, "classification_heads.{head}."),
    (
        Names("dense", *["dense"] * 3, "bert.pooler.dense", None, "dense"),
        Names("out_proj", *["out_proj"] * 3, "classifier", None, "out_proj"),
    ),
)
"""DistilBERT's head has another activation function."""
SPAN_HEAD = Part(
    Names("classification_heads.{head}.", *[""] * 5, None),
    (Names("qa_outputs", *["qa_outputs"] * 5, None),),
)
# fmt: on

TOKEN_CLASSIFICATION_HEAD = Part(
    Names("classification_heads.{head}.", *[""] * 5, None), (Names("classifier", *["classifier"] * 5, None),)
)

_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = "qkv_proj"


def encoder_parts(kind: str) -> tuple[Part, ...]:
    """Return the parts of an encoder, for a column of the table."""
    parts = (EMBEDDINGS, RELATIVE_BIAS, LAYER, OUTPUT_LAYER_NORM)
    return tuple(part for part in parts if getattr(part.prefix, kind) is not None)


def names_of(parts: Iterable[Part], kind: str, layers: int, head: str = "") -> dict[str, str]:
    """Return a mapping from our names of all weights of some parts to the names elsewhere.

    Args:
        parts: parts of the model.
        kind: column of the table, such as ``mpnet``.
        layers: number of encoder layers.
        head: our name of the classification head.
    """
    spelled_out = {}
    for part in parts:
        for layer in range(layers if part is LAYER else 1):
            prefix, theirs = (getattr(part.prefix, side).format(layer=layer, head=head) for side in ("ours", kind))
            for row in part.names:
                for end in ("",) if row.ours.endswith(("weight", "bias")) else (".weight", ".bias"):
                    spelled_out[f"{prefix}{row.ours}{end}"] = f"{theirs}{getattr(row, kind)}{end}"
    return spelled_out


def to_theirs(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename our weights to the other names, and drop weights without one."""
    split = {}
    for name, weight in weights.items():
        if f".{_FUSED}." in name:
            for separate, part in zip(_SEPARATE, weight.chunk(len(_SEPARATE)), strict=True):
                split[name.replace(_FUSED, separate)] = part
        else:
            split[name] = weight
    return {theirs: split[ours] for ours, theirs in names.items()}


def to_ours(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename their weights to our names, and drop weights without one."""
    first = f".{_SEPARATE[0]}."
    split = {ours: weights[theirs] for ours, theirs in names.items()}
    joined = {}
    for name in split:
        if first in name:
            parts = [split[name.replace(_SEPARATE[0], separate)] for separate in _SEPARATE]
            joined[name.replace(_SEPARATE[0], _FUSED)] = torch.cat(parts)
        elif not any(f".{separate}." in name for separate in _SEPARATE):
            joined[name] = split[name]
    return joined
