"""Tiny models of every type of encoder that can be wrapped."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.utils.hugging_face import import_transformers
from mae_lm_fairseq.wrapped.network import build_network, describe, options_of

VOCABULARY, ROWS, PAD, MASK = 100, 104, 1, 99
"""Tokens, rows of the embeddings, and our ids."""
_BUCKETS = {
    "relative_attention": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "max_relative_positions": -1,
}
OPTIONS = {
    "albert": {"embedding_size": 8, "num_hidden_groups": 2},
    "deberta": {**_BUCKETS, "pos_att_type": "c2p|p2c"},
    "deberta-v2": {
        **_BUCKETS,
        "pos_att_type": "p2c|c2p",
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "electra": {"embedding_size": 8},
    "modernbert": {"global_attn_every_n_layers": 3, "local_attention": 16, "initializer_cutoff_factor": 2.0},
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 24},
    "roformer": {"embedding_size": 16},
}
"""Options beside those that all types have."""


def stock(kind: str, auto: str = "AutoModelForMaskedLM", pad: int = 1, **changes) -> nn.Module:
    """Return a stock model with three layers, in evaluation mode. Every weight differs from its initial value."""
    transformers = import_transformers()
    values = {
        "vocab_size": ROWS,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 80,
        "initializer_range": 0.3,
        "hidden_dropout_prob": 0.1,
        **{f"{role}_token_id": token for role, token in (("pad", pad), ("bos", 0), ("eos", 2), ("cls", 0), ("sep", 2))},
        **OPTIONS.get(kind, {}),
        **changes,
    }
    if kind == "distilbert":
        names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        names |= {"intermediate_size": "hidden_dim"}
        values = {names.get(name, name): value for name, value in values.items()}
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(kind, **values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


class Pair(NamedTuple):
    """A stock model, and the network that uses its encoder and head."""

    stock: nn.Module
    network: MaskedAutoencoder


def wrap(model: nn.Module, preset: str = "mae_lm_roberta", **changes) -> Pair:
    """Return a network around a stock model, with its weights."""
    options = options_of(describe(model.config.to_dict())) | changes
    decoder = {} if preset == "mae_lm_roberta" else {"decoder_layers": 1, "decoder_relative_buckets": 32}
    network = build_network(preset_config(preset, "base", **{**options, **decoder}), VOCABULARY, PAD, MASK)
    weights, prefix = copy.deepcopy(model).state_dict(), f"{model.base_model_prefix}."
    of_base = {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}
    network.encoder.model.load_state_dict(of_base)
    network.lm_head.model.load_state_dict({name: x for name, x in weights.items() if not name.startswith(prefix)})
    return Pair(model, network.eval())
