"""Names of weights in this package, in each family of ``transformers``, and in fairseq's RoBERTa.

The mappings are used in both directions, so that a round trip preserves every bit. Apart from names, one layout
differs: queries, keys and values are a single matrix here and three matrices elsewhere.
"""

import itertools
from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch
from torch import Tensor

from mae_lm_fairseq.trained.validation import HEADS
from mae_lm_fairseq.wrapped.heads import ANSWERS, SENTENCES, WORDS

EMBEDDINGS = "autoencoder.encoder.embed_tokens.weight"
LM_WEIGHT, LM_BIAS = "autoencoder.lm_head.weight", "autoencoder.lm_head.bias"
"""Our names of the weights that may be tied."""
FAIRSEQ = "fairseq"


class Part(StrEnum):
    """A part of a model; the head of a task is called by the ending of its class.

    The output weights replace the bias of the language model head if they are not tied.
    """

    encoder = "encoder"
    lm_head = "lm_head"
    output_weights = "output_weights"


_ENCODER, _LAYER, _LM_HEAD = "autoencoder.encoder.", "autoencoder.encoder.layers.{layer}.", "autoencoder.lm_head."
_HEAD = f"{HEADS}{{head}}."
_BERT_LAYER = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_PRE_NORM_LAYER = _BERT_LAYER | {
    "attention_layer_norm": "attention.LayerNorm",
    "final_layer_norm": "intermediate.LayerNorm",
}
_MPNET_LAYER = _BERT_LAYER | {
    "attention.q_proj": "attention.attn.q",
    "attention.k_proj": "attention.attn.k",
    "attention.v_proj": "attention.attn.v",
    "attention.out_proj": "attention.attn.o",
    "attention_layer_norm": "attention.LayerNorm",
}
_DISTILBERT_LAYER = {
    "attention.q_proj": "attention.q_lin",
    "attention.k_proj": "attention.k_lin",
    "attention.v_proj": "attention.v_lin",
    "attention.out_proj": "attention.out_lin",
    "attention_layer_norm": "sa_layer_norm",
    "fc1": "ffn.lin1",
    "fc2": "ffn.lin2",
    "final_layer_norm": "output_layer_norm",
}
_FAIRSEQ_LAYER = {name: name.replace("attention", "self_attn") for name in _BERT_LAYER}


def _lm_head(dense: str, layer_norm: str, bias: str) -> dict[str, str]:
    return {f"{_LM_HEAD}dense": dense, f"{_LM_HEAD}layer_norm": layer_norm, LM_BIAS: bias}


_STOCK_HEADS = {
    Part.lm_head: _lm_head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    Part.output_weights: {LM_WEIGHT: "lm_head.decoder.weight", LM_BIAS: "lm_head.decoder.bias"},
    SENTENCES.ending: {f"{_HEAD}dense": "classifier.dense", f"{_HEAD}out_proj": "classifier.out_proj"},
    ANSWERS.ending: {f"{_HEAD}qa_outputs": "qa_outputs"},
    WORDS.ending: {f"{_HEAD}classifier": "classifier"},
}


def _stock_encoder(prefix: str, layer: Mapping[str, str], layers: str = "encoder.layer") -> dict[str, str]:
    return {
        EMBEDDINGS: f"{prefix}.embeddings.word_embeddings.weight",
        f"{_ENCODER}embed_positions.weight": f"{prefix}.embeddings.position_embeddings.weight",
        f"{_ENCODER}embed_layer_norm": f"{prefix}.embeddings.LayerNorm",
        **{f"{_LAYER}{ours}": f"{prefix}.{layers}.{{layer}}.{theirs}" for ours, theirs in layer.items()},
    }


NAMES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "roberta": {Part.encoder: _stock_encoder("roberta", _BERT_LAYER), **_STOCK_HEADS},
    "roberta_prelayernorm": {
        Part.encoder: _stock_encoder("roberta_prelayernorm", _PRE_NORM_LAYER)
        | {f"{_ENCODER}output_layer_norm": "roberta_prelayernorm.LayerNorm"},
        **_STOCK_HEADS,
    },
    "mpnet": {
        Part.encoder: _stock_encoder("mpnet", _MPNET_LAYER)
        | {f"{_ENCODER}relative_bias.weight": "mpnet.encoder.relative_attention_bias.weight"},
        **_STOCK_HEADS,
    },
    "bert": {
        **_STOCK_HEADS,
        Part.encoder: _stock_encoder("bert", _BERT_LAYER),
        Part.lm_head: _lm_head(
            "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
        ),
        Part.output_weights: {LM_WEIGHT: "cls.predictions.decoder.weight", LM_BIAS: "cls.predictions.decoder.bias"},
        SENTENCES.ending: {f"{_HEAD}dense": "bert.pooler.dense", f"{_HEAD}out_proj": "classifier"},
    },
    "distilbert": {
        Part.encoder: _stock_encoder("distilbert", _DISTILBERT_LAYER, "transformer.layer"),
        Part.lm_head: _lm_head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        Part.output_weights: {LM_WEIGHT: "vocab_projector.weight", LM_BIAS: "vocab_projector.bias"},
        # Its classification head has another activation function.
        ANSWERS.ending: _STOCK_HEADS[ANSWERS.ending],
        WORDS.ending: _STOCK_HEADS[WORDS.ending],
    },
    FAIRSEQ: {
        Part.encoder: {
            EMBEDDINGS: "encoder.sentence_encoder.embed_tokens.weight",
            f"{_ENCODER}embed_positions.weight": "encoder.sentence_encoder.embed_positions.weight",
            f"{_ENCODER}embed_layer_norm": "encoder.sentence_encoder.layernorm_embedding",
            **{f"{_LAYER}{x}": f"encoder.sentence_encoder.layers.{{layer}}.{y}" for x, y in _FAIRSEQ_LAYER.items()},
        },
        Part.lm_head: _lm_head("encoder.lm_head.dense", "encoder.lm_head.layer_norm", "encoder.lm_head.bias"),
        Part.output_weights: {LM_WEIGHT: "encoder.lm_head.weight", LM_BIAS: "encoder.lm_head.bias"},
        SENTENCES.ending: {f"{_HEAD}dense": f"{_HEAD}dense", f"{_HEAD}out_proj": f"{_HEAD}out_proj"},
    },
}
"""For each family, the names of modules and weights by ours. A name that ends in neither ``weight`` nor ``bias`` stands
for both of them."""

_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = "qkv_proj"


def names_of(parts: Iterable[str], naming: str, layers: int = 0, head: str = "") -> dict[str, str]:
    """Return the names elsewhere of all weights of some parts, by ours. ``naming`` is a key of :data:`NAMES`."""
    spelled_out = {}
    for ours, theirs in itertools.chain.from_iterable(NAMES[naming][part].items() for part in parts):
        ends = ("",) if ours.endswith(("weight", "bias")) else (".weight", ".bias")
        for layer in range(layers if ours.startswith(_LAYER) else 1):
            one, other = (name.format(layer=layer, head=head) for name in (ours, theirs))
            spelled_out |= {one + end: other + end for end in ends}
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
    renamed = {ours: weights[theirs] for ours, theirs in names.items()}
    for name in [name for name in renamed if f".{_SEPARATE[0]}." in name]:
        parts = [renamed.pop(name.replace(_SEPARATE[0], separate)) for separate in _SEPARATE]
        renamed[name.replace(_SEPARATE[0], _FUSED)] = torch.cat(parts)
    return renamed
