"""Networks around a wrapped encoder: its configuration, its own heads, and the masked autoencoder made of them."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder, initialise
from mae_lm_fairseq.core.config import MOST_LAYERS, MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.core.decoder import build_decoder
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.utils.hugging_face import (
    configuration_errors,
    configuration_of,
    import_transformers,
    without_code,
)
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.wrapped.encoder import WrappedDecoder, WrappedEncoder, first_position, kind_of

ENCODER_MODEL, LM_HEAD = "autoencoder.encoder.model.", "autoencoder.lm_head.model."
"""Prefixes of the weights of encoder and head in checkpoints."""
_NOT_OF_THE_ENCODER = {
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
}
_DROPOUTS = {
    "dropout": ("hidden_dropout_prob", "hidden_dropout", "dropout", "embedding_dropout", "mlp_dropout", "resid_pdrop"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
}
"""The names that different types give to our options."""


def describe(config: Mapping[str, Any]) -> str:
    """Return the value of the option ``wrapped`` for the content of a ``config.json``."""
    values = without_code(dict(config))
    for name in _NOT_OF_THE_ENCODER & values.keys():
        del values[name]
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def stock_config(description: str, **changes: Any) -> Any:
    """Return the ``transformers`` configuration of a value of ``wrapped``, with changes.

    Raises:
        ValueError: if its type is not in :data:`~mae_lm_fairseq.wrapped.encoder.KINDS`, as of models that fetch parts
            from the hub, its layers would fill the memory, or ``transformers`` does not take a value.
    """
    values = json.loads(description) | changes
    kind_of(values.get("model_type"))
    config = configuration_of(values)
    if config.num_hidden_layers > MOST_LAYERS:
        raise ValueError(f"it has {config.num_hidden_layers:,} layers, more than {MOST_LAYERS:,}")
    return config


@lru_cache
def options_of(description: str) -> dict[str, Any]:
    """Return the values of the network's options that a wrapped encoder determines, and its rates of dropout.

    Raises:
        ValueError: if ``transformers`` cannot build the encoder, or a layer of it has several inside.
    """
    config = stock_config(description)
    layers_inside = getattr(config, "inner_group_num", 1)
    if layers_inside != 1:
        raise ValueError(f"inner_group_num is {layers_inside}, but this package only supports 1")
    base = _base_on_meta(description)
    ffn_dim = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 4 * config.hidden_size)
    rates = {}
    for option, names in _DROPOUTS.items():
        name = next(name for name in names if hasattr(config, name))
        rates[option] = float(getattr(config, name))
    return {
        "encoder_layers": config.num_hidden_layers,
        "encoder_embed_dim": config.hidden_size,
        "encoder_ffn_embed_dim": ffn_dim,
        "encoder_attention_heads": config.num_attention_heads,
        "max_positions": config.max_position_embeddings - first_position(base),
        "relative_buckets": 0,
        "wrapped": description,
        **rates,
    }


@lru_cache
def _base_on_meta(description: str) -> nn.Module:
    with configuration_errors(), on_meta_device():
        return import_transformers().AutoModel.from_config(stock_config(description))


def padding_id(description: str) -> int | None:
    """Return the id of the token for padding in the embeddings of a wrapped encoder; some types have a fixed one."""
    return _base_on_meta(description).get_input_embeddings().padding_idx


class StatesOfCaller(nn.Module):
    """Takes the place of the base model inside a model with a head, which then reads the states that a caller has.

    Keeps the pooler, which belongs to the head.
    """

    def __init__(self, base: nn.Module):
        super().__init__()
        self.pooler = getattr(base, "pooler", None)

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, **unused: Any) -> Any:
        """Return ``inputs_embeds`` [B, T, dim] as the last hidden states."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        pooled = None
        if isinstance(self.pooler, nn.Linear):  # ALBERT's
            pooled = torch.tanh(self.pooler(inputs_embeds[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(inputs_embeds)
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


class WrappedHead(LMHead):
    """The language model head of a model of ``transformers``; behind a decoder, it reads the decoder's states.

    Logits of rows that no token has follow those of the tokens, because the original's probabilities include them.

    Args:
        model: a ``...ForMaskedLM`` around :class:`StatesOfCaller`.
    """

    def __init__(self, model: nn.Module):
        nn.Module.__init__(self)
        output = model.get_output_embeddings()
        # Keeps the names of the weights and returns its input, so that the loss can be computed in chunks.
        weights_only = nn.Identity()
        weights_only.weight = output.weight
        weights_only.bias = output.bias
        model.set_output_embeddings(weights_only)
        self.model = model

    @property
    def weight(self) -> Tensor:
        """Output weights."""
        return self.model.get_output_embeddings().weight

    @property
    def bias(self) -> Tensor:
        """Bias of the output layer, zero where the original has none."""
        output = self.model.get_output_embeddings()
        return output.weight.new_zeros(len(output.weight)) if output.bias is None else output.bias

    def transform(self, states: Tensor) -> Tensor:
        """Convert hidden states [N, dim] to the vectors that are compared with the output weights."""
        return self.model(inputs_embeds=states[None]).logits[0]


def stock_class(description: str, task: str) -> type | None:
    """Return the class of the wrapped encoder's type for a task, the ending of its name; None if it has none."""
    auto = getattr(import_transformers(), f"AutoModel{task.removeprefix('Model')}")
    return auto._model_mapping.get(type(stock_config(description)), None)


def take_apart(full: nn.Module) -> nn.Module:
    """Take the base model out of a model with a head, which keeps the pooler, and return it."""
    base = full.base_model
    setattr(full, full.base_model_prefix, StatesOfCaller(base))
    base.pooler = None
    return base


class WrappedAutoencoder(MaskedAutoencoder):
    """A masked autoencoder around a wrapped encoder, with its language model head."""

    def __init__(
        self, config: MaskedAutoencoderConfig, mask: int, encoder: WrappedEncoder, decoder: nn.Module, lm_head: LMHead
    ):
        nn.Module.__init__(self)
        self.config, self.mask = config, mask
        self.encoder, self.decoder, self.lm_head = encoder, decoder, lm_head


def build_network(config: MaskedAutoencoderConfig, vocab_size: int, pad: int, mask: int) -> MaskedAutoencoder:
    """Build the network of a configuration, with random weights.

    A wrapped encoder has buffers that no file has: build it on the meta device for its shapes only.

    Args:
        config: configuration of the network.
        vocab_size: number of tokens, special tokens included.
        pad, mask: ids of ``<pad>`` and ``<mask>``.

    Raises:
        ValueError: if options contradict the wrapped encoder.
    """
    if config.wrapped is None:
        return MaskedAutoencoder(config, vocab_size, pad, mask)
    _check_options(config, vocab_size)
    stock = stock_config(config.wrapped)
    _set_dropout(stock, dropout=config.dropout, attention_dropout=config.attention_dropout)
    full = import_transformers().AutoModelForMaskedLM.from_config(stock)
    sees_masks = config.mask_join is MaskJoin.embeddings
    encoder = WrappedEncoder(take_apart(full), pad, sees_masks, config.max_positions)
    if has_own_decoder(config):
        decoder = _stock_decoder(config)
    else:
        decoder = build_decoder(config, pad, encoder_positions=None)
        initialise(decoder.modules(), config)
    return WrappedAutoencoder(config, mask, encoder, decoder, WrappedHead(full))


def _stock_decoder(config: MaskedAutoencoderConfig) -> WrappedDecoder:
    """Return a decoder of the last layers of the wrapped encoder, with random weights."""
    count = config.decoder_layers
    types = getattr(stock_config(config.wrapped), "layer_types", None)
    changes = {"layer_types": types[-count:]} if types else {}
    stock = stock_config(config.wrapped, num_hidden_layers=count, **changes)
    _set_dropout(stock, dropout=config.decoder_dropout, attention_dropout=config.decoder_dropout)
    return WrappedDecoder(stock_class(config.wrapped, "Model")._from_config(stock))


def _set_dropout(stock: Any, **rates: float) -> None:
    for option, names in _DROPOUTS.items():
        for name in names:
            if hasattr(stock, name):
                setattr(stock, name, rates[option])


def contradictions(config: MaskedAutoencoderConfig) -> Iterator[tuple[str, Any]]:
    """Yield the options that are not those of the wrapped encoder, with its values."""
    for name, needed in options_of(config.wrapped).items():
        value = getattr(config, name)
        is_free = name in _DROPOUTS or (name == "max_positions" and value < needed)
        if value != needed and not is_free:
            yield name, needed


def _check_options(config: MaskedAutoencoderConfig, vocab_size: int) -> None:
    for name, needed in contradictions(config):
        raise ValueError(f"{name} {getattr(config, name)} contradicts wrapped, where it is {needed}")
    rows = stock_config(config.wrapped).vocab_size
    if rows < vocab_size:
        raise ValueError(f"wrapped has embeddings of {rows} tokens, and the dictionary has {vocab_size}")


def has_own_decoder(config: MaskedAutoencoderConfig) -> bool:
    """Return whether the decoder is made of layers of the wrapped encoder's type, which then know the positions."""
    stock = stock_config(config.wrapped)
    sizes = (config.decoder_embed_dim, config.decoder_ffn_embed_dim, config.decoder_attention_heads)
    conditions = [
        0 < config.decoder_layers <= config.encoder_layers,
        kind_of(stock.model_type).has_relative_positions,
        config.decoder_attention == "self",
        config.decoder_relative_buckets == 0,
        not config.reset_mask_states,
        not any(sizes),
        getattr(stock, "embedding_size", stock.hidden_size) == stock.hidden_size,
    ]
    return all(conditions)


def own_decoder(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a decoder of :func:`has_own_decoder` starts from: the last layers of the encoder.

    ``weights`` and what is returned have their names in the network.
    """
    layers_below = config.encoder_layers - config.decoder_layers

    def in_encoder(layer: re.Match) -> str:
        return f"{layer[1]}{int(layer[2]) + layers_below}"

    decoder = {}
    for name in _on_meta(config).state_dict():
        if name.startswith("decoder."):
            source = re.sub(r"(?<=layer)(s?\.)(\d+)", in_encoder, name, count=1)
            decoder[name] = weights[f"encoder.{source.removeprefix('decoder.')}"].clone()
    return decoder


@lru_cache
def _on_meta(config: MaskedAutoencoderConfig) -> MaskedAutoencoder:
    with on_meta_device():
        return build_network(config, vocab_size=1, pad=0, mask=0)


def shared_weights(config: MaskedAutoencoderConfig) -> dict[str, str]:
    """Return the additional names of the weights that a wrapped model shares, each with its first name."""
    first_names, shared = {}, {}
    for name, weight in _on_meta(config).named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(weight), name)
        if first != name:
            shared[name] = first
    return shared


def rows_of_tokens(config: MaskedAutoencoderConfig) -> set[str]:
    """Return the names of the weights of a wrapped model that have a row for each token."""
    network = _on_meta(config)
    head, embeddings = network.lm_head, network.encoder.embed_tokens
    of_tokens = {id(weight) for weight in (embeddings.weight, head.weight, head.bias)}
    parameters = network.named_parameters(remove_duplicate=False)
    return {name for name, weight in parameters if id(weight) in of_tokens}
