"""Validation: weights, configuration and dictionary must match before any of the weights is used.

:func:`~mae_lm_fairseq.trained.checkpoint_file.content_errors` adds the name of the file to the errors.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig
from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.trained.checkpoint_file import value_at
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.wrapped.heads import ANSWERS, HEAD_KINDS, SENTENCES, WORDS, WrappedTaskHead
from mae_lm_fairseq.wrapped.network import build_network, rows_of_tokens, shared_weights

NETWORK, HEADS = "autoencoder.", "classification_heads."
"""Prefixes of weight names: of the network, and of heads, where the head's name follows."""
PREDICTION = (f"{NETWORK}decoder.", f"{NETWORK}lm_head.")
"""Prefixes of the parts of the network that fine-tuning drops."""
SENTENCE_HEAD, ANSWER_HEAD, WORD_HEAD = SENTENCES.name, ANSWERS.name, WORDS.name
"""Names of the heads for classification or regression of sentences, question answering, and labels of words.

The first is the default of fairseq's ``sentence_prediction``.
"""
TOKEN_WEIGHTS = frozenset(
    f"autoencoder.{name}" for name in ("encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias")
)
"""Weights of our network that have a row for each token."""
ADDED = {("wrapped", None)}
"""Options that bundles lack, with the values that they then have."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


def head_names(weights: Iterable[str]) -> list[str]:
    """Return the sorted names of the heads that the weight names contain."""
    return sorted({name.split(".")[1] for name in weights if name.startswith(HEADS)})


def network_config(values: Mapping[str, Any]) -> MaskedAutoencoderConfig:
    """Return the configuration made of ``values``, which must be complete and have the exact types of the options.

    Raises:
        ValueError, OverflowError: if a value is missing, unknown, of another type, out of range, or contradicts
            another.
    """
    values = dict(ADDED) | values
    if missing := {option.name for option in fields(MaskedAutoencoderConfig)} - values.keys():
        raise ValueError(f"{min(missing)} is missing")
    return typed(values, MaskedAutoencoderConfig)


def saved_config(state: Mapping[str, Any]) -> MaskedAutoencoderConfig:
    """Return the configuration of the network in a checkpoint's content.

    Raises:
        ValueError, OverflowError: if it is not a checkpoint of this package, or an option is invalid.
    """
    options = value_at(state, "cfg", "model")
    if value_at(options, "_name") not in ARCHITECTURES:
        raise ValueError("not a checkpoint of an mae_lm_fairseq model")
    # An option that a checkpoint lacks was added since, and its default is what the checkpoint was trained with.
    return network_config(
        {option.name: options.get(option.name, option.default) for option in fields(MaskedAutoencoderConfig)}
    )


def skeleton(
    config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor], symbols: int, device: str = "meta"
) -> nn.ModuleDict:
    """Return network and heads without the parts that ``weights`` lack, by default on a device that takes no memory.

    Its weights have their names in checkpoints.

    Raises:
        KeyError: if a head has an invalid name.
    """
    with torch.device(device):
        network = build_network(config, symbols, PAD, mask=symbols - 1)
        if not any(name.startswith(PREDICTION) for name in weights):
            network.drop_prediction()
        modules = {head: _head_like(head, weights, config) for head in head_names(weights)}
        return nn.ModuleDict({"autoencoder": network, "classification_heads": nn.ModuleDict(modules)})


def tied_names(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the additional names of tied weights, each with the name that the weight is stored under.

    Names of parts that ``weights`` lack are not included.
    """
    if not any(name.startswith(PREDICTION) for name in weights):
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
    return frozenset(f"{NETWORK}{name}" for name in rows_of_tokens(config)) if config.wrapped else TOKEN_WEIGHTS


def check_fit(config: MaskedAutoencoderConfig, weights: Mapping[str, Any], symbols: int, is_part: bool = False):
    """Check that the weights are exactly those of the network and its heads, in name and shape.

    Tied weights are needed under all of their names. ``symbols`` is the size of the dictionary, and ``is_part`` accepts
    that weights are missing.

    Raises:
        ValueError: if a weight is missing, unknown, or has another shape, type or value than the network needs.
        KeyError: if a head has an invalid name.
    """
    check_tensors(weights)
    needed = {name: list(weight.shape) for name, weight in skeleton(config, weights, symbols).state_dict().items()}
    found = {name: list(weight.shape) for name, weight in weights.items()}
    for name in sorted(found if is_part else needed.keys() | found):
        if found.get(name) != needed.get(name):
            fault = f"has shape {found[name]}" if name in found else "is missing"
            wanted = needed.get(name, "no such weight")
            raise ValueError(f"{name} {fault}, but configuration and dictionary require {wanted}")
    check_ties(config, weights)


def check_ties(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]):
    """Raise a ValueError if weights differ that the network ties: loading them would keep one of the two alone."""
    for name, first in tied_names(config, weights).items():
        one, other = weights.get(name), weights.get(first)
        if one is not None and other is not None and one is not other and not torch.equal(one, other):
            option = "decoder-share-positions" if "positions" in name else "untie-output-weights"
            raise ValueError(f"{name} and {first} differ, but the network ties the two (--{option})")


def is_plain(weight: Any) -> bool:
    """Return whether this is a dense, real tensor on the CPU."""
    is_dense = isinstance(weight, Tensor) and weight.layout is torch.strided and weight.device.type == "cpu"
    return is_dense and not weight.is_complex()


def check_tensors(weights: Mapping[str, Any]):
    """Raise a ValueError unless these are tensors of one floating-point precision by name."""
    kinds = {weight.dtype if is_plain(weight) else type(weight) for weight in weights.values()}
    if len(kinds) != 1 or not kinds <= set(PRECISIONS) or not all(isinstance(name, str) for name in weights):
        raise ValueError(f"its weights are {sorted(map(str, kinds))}, not tensors of one precision by name")


def output_layer(head: str, weights: Iterable[str]) -> str:
    """Return the name of the last layer of a head, which has a row for each class.

    Raises:
        ValueError: if there is none.
    """
    names = "|".join(kind.output_layer for kind in HEAD_KINDS)
    pattern = re.compile(rf"({HEADS}{re.escape(head)}\.(.*\.)?({names}))\.weight")
    if found := next(filter(None, map(pattern.fullmatch, weights)), None):
        return found[1]
    raise ValueError(f"the head {head} has no output layer")


def _head_like(head: str, weights: Mapping[str, Tensor], config: MaskedAutoencoderConfig) -> nn.Module:
    """Return a new head, without dropout, of the class and size that trained weights have."""
    layer, prefix = output_layer(head, weights), f"{HEADS}{head}."
    labels = len(weights[f"{layer}.weight"])
    inner_dim = len(weights.get(f"{prefix}dense.weight", ()))
    first = layer.removeprefix(prefix).partition(".")[0]
    for kind in HEAD_KINDS:
        if first == kind.ending:
            return WrappedTaskHead(config, kind, labels, dropout=0.0)
        if first == kind.output_layer:
            return kind.build(config, labels, inner_dim=inner_dim)
    raise ValueError(f"the head {head} has an unknown layer {first}")
