"""Encoders of ``transformers`` that are trained from random weights: a configuration becomes options of the network."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES, PRESETS, plain_values, preset_config, takes_encoder
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.trained.checkpoint_file import content_errors
from mae_lm_fairseq.trained.conversion import OWN_BIAS, with_position_bias
from mae_lm_fairseq.trained.huggingface.families import read_config
from mae_lm_fairseq.trained.original import CONFIG
from mae_lm_fairseq.trained.reading import check_model_exists
from mae_lm_fairseq.trained.token_order import TokenOrder, token_order
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import MOST_JSON_BYTES, read_bytes
from mae_lm_fairseq.utils.hugging_face import without_code
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.wrapped.network import build_network, describe, options_of, padding_id

_ROLES = {"pad": PAD, "bos": BOS, "cls": BOS, "eos": EOS, "sep": EOS}
"""Our ids of the special tokens that configurations name."""


def encoder_options(path: Path, architecture: str, data_bin: Path) -> dict[str, Any]:
    """Return the options of an architecture whose encoder has a configuration of ``transformers``, and random weights.

    Sizes, positions and dropout are the configuration's. Vocabulary and special ids are the data-bin's. A decoder is
    of the encoder's type if its layers know the positions; otherwise it gets a relative position bias.

    Args:
        path: ``config.json``, or a directory with it.
        architecture: preset and size, such as ``mae_lm_tiny``; the size is that of the decoder.
        data_bin: directory with dictionary and tokenizer.

    Raises:
        UserError: if the configuration leads to code, ``transformers`` cannot build its encoder, or the preset cannot
            be trained around it.
    """
    preset, _ = ARCHITECTURES[architecture]
    if not takes_encoder(preset):
        others = ", ".join(filter(takes_encoder, PRESETS))
        raise UserError(f"--encoder does not work with the preset {architecture}; choose one of {others} and its size")
    check_model_exists(path)
    if path.is_dir():
        path = path / CONFIG
    symbols = read_symbols(data_bin / DICTIONARY)
    order = token_order(find_tokenizer(data_bin), len(symbols))
    content = read_bytes(path, MOST_JSON_BYTES)
    with content_errors(path):
        read_config(content, path)
        config = json.loads(content)
        for name, value in config.items():
            if without_code({name: value}) != {name: value}:
                raise UserError(f"{path}: {name} leads to code or to other files, which are never read; remove it")
        description = describe(_with_tokens_of(config, order, len(symbols)))
        return _options(description, architecture, len(symbols))


def _with_tokens_of(config: Mapping[str, Any], order: TokenOrder, size: int) -> dict[str, Any]:
    """Return a configuration with vocabulary and special ids of a data-bin, as its tokenizer is exported."""
    values = {name: value for name, value in config.items() if not name.endswith("_token_id")}
    values["vocab_size"] = size
    for role, index in _ROLES.items():
        values[f"{role}_token_id"] = order[index]
    return values


@lru_cache
def _options(description: str, architecture: str, size: int) -> dict[str, Any]:
    """Return the options of a value of ``wrapped``, with which the network can be built.

    Raises:
        ValueError: if it cannot.
    """
    options = options_of(description)
    network = with_position_bias(preset_config(*ARCHITECTURES[architecture], **options))
    with on_meta_device():
        build_network(network, size, PAD, size - 1)
    pad = json.loads(description)["pad_token_id"]
    padding = padding_id(description)
    if padding != pad:
        raise ValueError(
            f"its type pads with the id {padding}, and the tokenizer of the data-bin with {pad}; choose another type, "
            "or prepare the data with a tokenizer that mae-lm prepare trains"
        )
    values = plain_values(network)
    return {name: values[name] for name in (*options, *OWN_BIAS)}
