"""Validation: weights, configuration and dictionary must match before any of the weights is used.

:func:`~mae_lm_fairseq.trained.checkpoint_file.content_errors` adds the name of the file to the errors.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.config import ARCHITECTURES, DECODER_ATTENTIONS, MaskedAutoencoderConfig
from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.trained.checkpoint_file import value_at
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.wrapped.heads import ANSWERS, HEAD_KINDS, SENTENCES, WORDS, WrappedTaskHead
from mae_lm_fairseq.wrapped.network import build_network, rows_of_tokens, shared_weights

NETWORK, HEADS = "autoencoder.", "classification_heads."
"""Prefixes of weight names: of the network, and of heads, where the head's name follows."""
DECODER = f"{NETWORK}decoder."
PREDICTION = (DECODER, f"{NETWORK}lm_head.")
"""Prefixes of the parts of the network that fine-tuning drops."""
SENTENCE_HEAD, ANSWER_HEAD, WORD_HEAD = SENTENCES.name, ANSWERS.name, WORDS.name
"""Names of the heads for classification or regression of sentences, question answering, and labels of words.

The first is the default of fairseq's ``sentence_prediction``.
"""
_TOKEN_ROWS = ("encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias")
"""Weights of our own network that have a row for each token."""
ADDED = {("wrapped", None)}
"""Options that bundles lack, with the values that they then have."""
PRECISIONS = {torch.float32, torch.float16, torch.bfloat16}


def head_names(weights: Iterable[str]) -> list[str]:
    """Return the sorted names of the heads that the weight names contain."""
    return sorted({name.split(".")[1] for name in weights if name.startswith(HEADS)})


def has_prediction(weights: Iterable[str]) -> bool:
    """Return whether the weights include a decoder or a language model head, which fine-tuning drops."""
    return any(name.startswith(PREDICTION) for name in weights)


def network_config(values: Mapping[str, Any]) -> MaskedAutoencoderConfig:
    """Return the configuration made of ``values``, which must be complete and have the exact types of the options.

    It may name a decoder whose code has not been imported, which fine-tuning drops and only predictions need.

    Raises:
        ValueError, OverflowError: if a value is missing, unknown, of another type, out of range, or contradicts
            another.
    """
    values = dict(ADDED) | values
    for option in fields(MaskedAutoencoderConfig):
        if option.name not in values:
            raise ValueError(f"{option.name} is missing")
    decoder = values["decoder_attention"]
    is_unknown = isinstance(decoder, str) and decoder not in DECODER_ATTENTIONS
    if is_unknown:
        values["decoder_attention"] = DECODER_ATTENTIONS[0]
    config = typed(values, MaskedAutoencoderConfig)
    if is_unknown:
        object.__setattr__(config, "decoder_attention", decoder)  # which no other configuration may have
    return config


def saved_config(state: Mapping[str, Any]) -> MaskedAutoencoderConfig:
    """Return the configuration of the network in a checkpoint's content.

    Raises:
        ValueError, OverflowError: if it is not a checkpoint of this package, or an option is invalid.
    """
    saved = value_at(state, "cfg", "model")
    if value_at(saved, "_name") not in ARCHITECTURES:
        raise ValueError("not a checkpoint of an mae_lm_fairseq model")
    # An option that a checkpoint lacks was added since, and its default is what the checkpoint was trained with.
    options = fields(MaskedAutoencoderConfig)
    return network_config({option.name: saved.get(option.name, option.default) for option in options})


def skeleton(
    config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor], symbols: int, has_memory: bool = False
) -> nn.ModuleDict:
    """Return network and heads without the parts that ``weights`` lack, with the names of weights in checkpoints.

    Args:
        has_memory: build them on the CPU, not on the device that takes no memory.

    Raises:
        KeyError: if a head has an invalid name.
    """
    with torch.device("cpu") if has_memory else on_meta_device():
        network = build_network(config, symbols, PAD, mask=symbols - 1)
        if not has_prediction(weights):
            network.drop_prediction()
        heads = nn.ModuleDict({name: _head_like(name, weights, config) for name in head_names(weights)})
        return nn.ModuleDict({"autoencoder": network, "classification_heads": heads})


def tied_names(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the additional names of tied weights, each with the name that the weight is stored under.

    Names of parts that ``weights`` lack are not included.
    """
    if not has_prediction(weights):
        return {}
    if config.wrapped:
        return {f"{NETWORK}{name}": f"{NETWORK}{first}" for name, first in shared_weights(config).items()}
    tied = {}
    if not config.untie_output_weights:
        tied[f"{NETWORK}lm_head.weight"] = f"{NETWORK}encoder.embed_tokens.weight"
    if config.decoder_share_positions:
        tied[f"{NETWORK}decoder.embed_positions.weight"] = f"{NETWORK}encoder.embed_positions.weight"
    return tied


def token_weights(config: MaskedAutoencoderConfig) -> frozenset[str]:
    """Return the names of the weights that have a row for each token."""
    names = rows_of_tokens(config) if config.wrapped else _TOKEN_ROWS
    return frozenset(NETWORK + name for name in names)


def check_fit(config: MaskedAutoencoderConfig, weights: Mapping[str, Any], symbols: int, is_part: bool = False):
    """Check that the weights are exactly those of the network and its heads, in name and shape.

    Tied weights are needed under all of their names. ``symbols`` is the size of the dictionary, and ``is_part`` accepts
    that weights are missing.

    Raises:
        ValueError: if a weight is missing, unknown, or has another shape, type or value than the network needs.
        KeyError: if a head has an invalid name.
    """
    check_tensors(weights)
    needed = shapes_of(skeleton(config, weights, symbols).state_dict())
    stored = shapes_of(weights)
    if config.decoder_attention not in DECODER_ATTENTIONS:
        stored = {name: shape for name, shape in stored.items() if not name.startswith(DECODER)}
    for name in sorted(stored if is_part else needed.keys() | stored):
        shape = stored.get(name)
        if shape != needed.get(name):
            fault = "is missing" if shape is None else f"has shape {shape}"
            required = needed.get(name, "no such weight")
            raise ValueError(f"{name} {fault}, but configuration and dictionary require {required}")
    check_ties(config, weights)


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the shapes of weights by name."""
    return {name: list(weight.shape) for name, weight in weights.items()}


def check_ties(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]):
    """Raise a ValueError if weights differ that the network ties: loading them would keep one of the two alone."""
    for name, first in tied_names(config, weights).items():
        if name not in weights or first not in weights or weights[name] is weights[first]:
            continue
        if not torch.equal(weights[name], weights[first]):
            option = "decoder-share-positions" if "positions" in name else "untie-output-weights"
            raise ValueError(f"{name} and {first} differ, but the network ties the two (--{option})")


def is_plain(weight: Any) -> bool:
    """Return whether this is a dense, real tensor on the CPU."""
    is_dense = isinstance(weight, Tensor) and weight.layout is torch.strided and weight.device.type == "cpu"
    return is_dense and not weight.is_complex()


def check_tensors(weights: Mapping[str, Any]):
    """Raise a ValueError unless these are tensors of one floating-point precision by name."""
    kinds = {weight.dtype if is_plain(weight) else type(weight) for weight in weights.values()}
    is_named = all(isinstance(name, str) for name in weights)
    if not is_named or len(kinds) != 1 or not kinds <= PRECISIONS:
        raise ValueError(f"its weights are {sorted(map(str, kinds))}, not tensors of one precision by name")


def output_layer(head: str, weights: Iterable[str]) -> str:
    """Return the name of the last layer of a head, which has a row for each class.

    Raises:
        ValueError: if there is none.
    """
    layers = "|".join(kind.output_layer for kind in HEAD_KINDS)
    pattern = re.compile(rf"({HEADS}{re.escape(head)}\.(.*\.)?({layers}))\.weight")
    for name in weights:
        if match := pattern.fullmatch(name):
            return match[1]
    raise ValueError(f"the head {head} has no output layer")


def class_count(head: str, weights: Mapping[str, Tensor]) -> int:
    """Return the number of classes of a head; raise a ValueError if it has no output layer."""
    return len(weights[f"{output_layer(head, weights)}.weight"])


def head_kind(head: str, weights: Iterable[str]) -> str:
    """Return the first module on the way to a head's output layer.

    That is the output layer itself, or the ending of the class of ``transformers`` that a wrapped head is of.

    Raises:
        ValueError: if the head has no output layer.
    """
    return output_layer(head, weights).removeprefix(f"{HEADS}{head}.").partition(".")[0]


def _head_like(head: str, weights: Mapping[str, Tensor], config: MaskedAutoencoderConfig) -> nn.Module:
    """Return a new head, without dropout, of the class and size that trained weights have."""
    first = head_kind(head, weights)
    labels = class_count(head, weights)
    for kind in HEAD_KINDS:
        if first == kind.ending:
            return WrappedTaskHead(config, kind, labels, dropout=0.0)
        if first == kind.output_layer:
            inner_dim = len(weights.get(f"{HEADS}{head}.dense.weight", ()))
            return kind.build(config, labels, inner_dim=inner_dim)
    raise ValueError(f"the head {head} has an unknown layer {first}")
