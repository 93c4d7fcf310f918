"""Validation: weights, configuration and dictionary must match before any of the weights is used."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mae_lm_fairseq.checkpoints.checkpoint_file import value_at
from mae_lm_fairseq.checkpoints.info import typed
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig
from mae_lm_fairseq.core.heads import head_like
from mae_lm_fairseq.text.tokenizer import PAD
from mae_lm_fairseq.utils.errors import UserError

NETWORK, HEADS = "autoencoder.", "classification_heads."
"""Prefixes of weight names: of the network, and of heads, where the head's name follows."""
PREDICTION = (f"{NETWORK}decoder.", f"{NETWORK}lm_head.")
"""Prefixes of the parts of the network that fine-tuning drops."""
SENTENCE_HEAD, ANSWER_HEAD, WORD_HEAD = "sentence_classification_head", "span", "tags"
"""Names of the heads for classification or regression of sentences, question answering, and labels of words.

The first is the default of fairseq's ``sentence_prediction``.
"""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


def head_names(weights: Iterable[str]) -> list[str]:
    """Return the sorted names of the heads that the weight names contain."""
    return sorted({name.split(".")[1] for name in weights if name.startswith(HEADS)})


def network_config(values: Mapping[str, Any], source: str | Path) -> MaskedAutoencoderConfig:
    """Return the configuration made of ``values``, which must be complete and have the exact types of the options.

    Raises:
        UserError: if a value is missing, unknown, of another type, out of range, or contradicts another.
    """
    names = {option.name for option in fields(MaskedAutoencoderConfig)}
    if missing := sorted(names - values.keys()):
        raise UserError(f"{source}: {missing[0]} is missing")
    try:
        return typed(dict(values), MaskedAutoencoderConfig)
    except (ValueError, OverflowError) as problem:
        raise UserError(f"{source}: {problem}") from None


def saved_config(state: Mapping[str, Any], source: str | Path) -> MaskedAutoencoderConfig:
    """Return the configuration of the network in a checkpoint's content.

    Raises:
        UserError: if it is not a checkpoint of this package, or an option is invalid.
    """
    options = value_at(state, "cfg", "model")
    if not isinstance(options, dict) or options.get("_name") not in ARCHITECTURES:
        raise UserError(f"{source} is not a checkpoint of an mae_lm_fairseq model")
    # An option that a checkpoint lacks was added since, and its default is what the checkpoint was trained with.
    values = {option.name: options.get(option.name, option.default) for option in fields(MaskedAutoencoderConfig)}
    return network_config(values, source)


def skeleton(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor], symbols: int) -> nn.ModuleDict:
    """Return network and heads on the meta device, which takes no memory, without the parts that ``weights`` lack.

    Its weights have their names in checkpoints.

    Raises:
        KeyError: if a head has an invalid name.
    """
    heads = {head: _under(f"{HEADS}{head}.", weights) for head in head_names(weights)}
    with torch.device("meta"):
        network = MaskedAutoencoder(config, symbols, PAD, mask=symbols - 1)
        if not any(name.startswith(PREDICTION) for name in weights):
            network.drop_prediction()
        modules = {name: head_like(of_head, config.encoder_embed_dim) for name, of_head in heads.items()}
        return nn.ModuleDict({"autoencoder": network, "classification_heads": nn.ModuleDict(modules)})


def _under(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def tied_names(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the additional names of tied weights, each with the name that the weight is stored under.

    Names of parts that ``weights`` lack are not included.
    """
    if not any(name.startswith(PREDICTION) for name in weights):
        return {}
    tied = {}
    if not config.untie_output_weights:
        tied[f"{NETWORK}lm_head.weight"] = f"{NETWORK}encoder.embed_tokens.weight"
    if config.decoder_share_positions:
        tied[f"{NETWORK}decoder.embed_positions.weight"] = f"{NETWORK}encoder.embed_positions.weight"
    return tied


def check_fit(config: MaskedAutoencoderConfig, weights: Mapping[str, Any], symbols: int, source: str | Path):
    """Check that the weights are exactly those of the network and its heads, in name and shape.

    Args:
        config: configuration of the network.
        weights: weights by name; tied weights under all of their names.
        symbols: number of symbols in the dictionary.
        source: file to name in the error message.

    Raises:
        UserError: if a weight is missing, unknown, or has another shape, type or value than the network needs.
    """
    check_tensors(weights, source)
    _check_extent(config, weights, symbols, source)
    try:
        expected = {name: weight.shape for name, weight in skeleton(config, weights, symbols).state_dict().items()}
    except KeyError as error:  # PyTorch rejects empty names and names of methods
        raise UserError(f"{source}: a head has an invalid name: {error.args[0]}") from None
    if different := sorted(expected.keys() ^ weights.keys()):
        fault = "is missing" if different[0] in expected else "is unknown to the network"
        more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        raise UserError(f"{source}: the weight {different[0]} {fault}{more}")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise UserError(
                f"{source}: {name} has shape {list(weights[name].shape)}, but the network needs {list(shape)}"
            )
    check_ties(config, weights, source)


def check_ties(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor], source: str | Path):
    """Check that weights are equal that the network ties: loading them would keep one of the two alone.

    Raises:
        UserError: if they differ.
    """
    for name, first in tied_names(config, weights).items():
        one, other = weights.get(name), weights.get(first)
        if one is not None and other is not None and one is not other and not torch.equal(one, other):
            option = "decoder-share-positions" if "positions" in name else "untie-output-weights"
            raise UserError(f"{source}: {name} and {first} differ, but the network ties the two (--{option})")


def is_plain(weight: Any) -> bool:
    """Return whether this is a dense, real tensor on the CPU."""
    is_dense = isinstance(weight, Tensor) and weight.layout is torch.strided and weight.device.type == "cpu"
    return is_dense and not weight.is_complex()


def check_tensors(weights: Any, source: str | Path):
    """Check that these are tensors of one floating-point precision by name.

    Raises:
        UserError: if they are not.
    """
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise UserError(f"{source}: its weights have no names")
    kinds = {weight.dtype if is_plain(weight) else type(weight) for weight in weights.values()}
    if len(kinds) != 1 or not kinds <= set(PRECISIONS):
        raise UserError(f"{source}: its weights are {sorted(map(str, kinds))}, not tensors of one precision")


def _check_extent(config: MaskedAutoencoderConfig, weights: Mapping[str, Tensor], symbols: int, source: str | Path):
    """Check sizes in the configuration against the weights, before building a network of that size."""
    for table, rows in (("embed_tokens", symbols), ("embed_positions", config.max_positions + PAD + 1)):
        weight, shape = weights.get(f"{NETWORK}encoder.{table}.weight"), (rows, config.encoder_embed_dim)
        if weight is None or weight.shape != shape:
            found = "missing" if weight is None else f"of shape {list(weight.shape)}"
            raise UserError(
                f"{source}: the encoder's {table} are {found}, but dictionary and configuration require {list(shape)}"
            )
    if config.encoder_layers + config.decoder_layers > 2 * len(weights):
        raise UserError(f"{source}: {len(weights)} weights are too few for the layers of the configuration")
