"""Readers for encoders from elsewhere: ``transformers`` directories and checkpoints of fairseq's RoBERTa.

Reading a file never runs code from it.
"""

import contextlib
import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from mae_lm_fairseq.huggingface.stock import LAYER_NORM_EPS, MPNET_BUCKETS, MPNET_DISTANCE
from mae_lm_fairseq.pretrained.checkpoint_file import load_as_data, refuse_code
from mae_lm_fairseq.pretrained.validation import PAD, is_plain
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.tokenizer import MASK, SPECIALS, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError, first_line

STOCK_WEIGHTS, STOCK_PICKLE = "model.safetensors", "pytorch_model.bin"
_KINDS = {"mpnet": "mpnet", "roberta": "roberta", "xlm-roberta": "roberta"}
"""Family of each ``model_type`` of transformers: the names and the computation that it shares."""
_ADDS_NOTHING = re.compile(
    r"((roberta|mpnet)\.)?(pooler\..*|embeddings\.(position_ids|token_type_ids))|encoder\.sentence_encoder\.version"
)
_OUTPUT_WEIGHTS = ("lm_head.decoder.weight", "lm_head.weight", "encoder.lm_head.weight")
_OUTPUT_BIAS = "lm_head.decoder.bias"


@dataclass(frozen=True)
class ForeignModel:
    """An encoder as read from its files.

    Attributes:
        kind: ``mpnet``, ``roberta`` or ``fairseq``.
        values: values of the encoder's options.
        weights: float32 weights under their original names, without output weights that are tied to the token
            embeddings.
        symbols: the dictionary in id order.
        tokenizer: the tokenizer, if it gives these ids.
    """

    kind: str
    values: dict[str, Any]
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    tokenizer: Tokenizer | None


def read_stock(directory: Path) -> ForeignModel:
    """Read a ``transformers`` directory."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a directory of transformers, or a checkpoint") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: damaged, or not JSON; restore it") from None
    kind = _KINDS.get(str(config.get("model_type"))) if isinstance(config, dict) else None
    if kind is None:
        raise UserError(f"{path}: only models of the types {', '.join(_KINDS)} can be imported")
    _refuse_other_computation(config, path)
    relative = {"relative_buckets": MPNET_BUCKETS, "relative_max_distance": MPNET_DISTANCE}
    renamed = {
        "encoder_layers": "num_hidden_layers",
        "encoder_embed_dim": "hidden_size",
        "encoder_ffn_embed_dim": "intermediate_size",
        "encoder_attention_heads": "num_attention_heads",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    # Missing values have transformers' defaults, which equal ours for all of these.
    values = {ours: config[theirs] for ours, theirs in renamed.items() if theirs in config}
    if isinstance(positions := config.get("max_position_embeddings"), int):
        values["max_positions"] = positions - PAD - 1
    values |= relative if kind == "mpnet" else {"relative_buckets": 0}
    weights = {name: weight for name, weight in _read_weights(directory).items() if not _ADDS_NOTHING.fullmatch(name)}
    if not any(name.startswith(f"{kind}.") for name in weights):
        weights = {f"{kind}.{name}": weight for name, weight in weights.items()}
    weights = _without_tied(weights, f"{kind}.embeddings.word_embeddings.weight", directory)
    symbols = _stock_symbols(directory)
    return ForeignModel(kind, values, weights, symbols, _tokenizer(directory, symbols))


def _refuse_other_computation(config: Mapping[str, Any], path: Path):
    """Reject a configuration that differs from our encoder in a value that has no option here."""
    fixed = {
        "hidden_act": ("gelu", "gelu"),
        "layer_norm_eps": (LAYER_NORM_EPS, 1e-12),
        "pad_token_id": (PAD, PAD),
        "position_embedding_type": ("absolute", "absolute"),
        "is_decoder": (False, False),
        "relative_attention_num_buckets": (MPNET_BUCKETS, MPNET_BUCKETS),
    }
    for name, (ours, default) in fixed.items():
        if (theirs := config.get(name, default)) != ours:
            raise UserError(f"{path}: {name} is {theirs!r}, but this package only supports {ours!r}")


def _read_weights(directory: Path) -> dict[str, Tensor]:
    path = directory / STOCK_WEIGHTS
    try:
        if path.exists():
            return _floats(safetensors.torch.load_file(path), path)
        path = directory / STOCK_PICKLE
        if not path.exists():
            raise UserError(f"{directory} has neither {STOCK_WEIGHTS} nor {STOCK_PICKLE}")
        return _floats(torch.load(path, map_location="cpu", weights_only=True), path)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # damaged files can raise anything
        refuse_code(path, error)
        raise UserError(f"{path}: damaged, or not a file of weights") from None


def _floats(weights: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise UserError(f"{path} is not a dictionary of weights")
    if other := [name for name, weight in weights.items() if not is_plain(weight)]:
        raise UserError(f"{path}: {other[0]} is not a tensor of weights")
    return {name: weight.float() for name, weight in weights.items()}


@contextlib.contextmanager
def transformers_errors(directory: Path) -> Iterator[None]:
    """Convert any exception from ``transformers`` in the ``with`` block to a short error message.

    Raises:
        UserError: if the block raises an exception.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # many types are raised; the one below is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of tokenizers, in Rust
            raise
        raise UserError(f"{directory}: transformers cannot load it: {first_line(error)}") from None


def _stock_symbols(directory: Path) -> tuple[str, ...]:
    from transformers import AutoTokenizer

    with transformers_errors(directory):
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        vocabulary = tokenizer.get_vocab()
    symbols = tuple(sorted(vocabulary, key=vocabulary.get))
    if sorted(vocabulary.values()) != list(range(len(symbols))):
        raise UserError(f"{directory}: the ids of its tokenizer are not 0, 1, 2, ...")
    if (*symbols[: len(SPECIALS)], *symbols[-1:]) != (*SPECIALS, MASK):
        raise UserError(
            f"{directory}: its tokens do not begin with {' '.join(SPECIALS)} and end with {MASK}, as fairseq's "
            "dictionary does"
        )
    return symbols


def _tokenizer(directory: Path, symbols: tuple[str, ...]) -> Tokenizer | None:
    """Return the tokenizer in a directory, if its subwords equal the symbols in order."""
    found = find_tokenizer(directory)
    same = found is not None and (*found.symbols, MASK) == symbols
    return found if same and np.array_equal(found.exported_ids, np.arange(len(symbols))) else None


def read_fairseq(path: Path, data_bin: Path) -> ForeignModel:
    """Read a checkpoint of fairseq's RoBERTa, and the dictionary in a directory."""
    state = load_as_data(path)
    options = _options(state)
    if options.get("activation_fn", "gelu") != "gelu":
        raise UserError(
            f"{path}: its activation function is {options['activation_fn']}, but this package only supports gelu"
        )
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    values = {name: options.get(name) for name in (*names, "dropout", "attention_dropout")}
    weights = _current_names(_floats(state["model"], path), path)
    positions = weights.get("encoder.sentence_encoder.embed_positions.weight")
    if None in [values[name] for name in names] or positions is None or not positions.dim():
        raise UserError(f"{path} is not a checkpoint of fairseq's RoBERTa")
    values |= {"max_positions": len(positions) - PAD - 1, "relative_buckets": 0}
    weights = _without_tied(weights, "encoder.sentence_encoder.embed_tokens.weight", path)
    symbols = read_symbols(data_bin / DICTIONARY)
    return ForeignModel("fairseq", values, weights, symbols, _tokenizer(data_bin, symbols))


def _options(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model's options, which are in different places in different versions of fairseq."""
    args, cfg = state.get("args"), state.get("cfg")
    for found in (args, cfg.get("model") if isinstance(cfg, Mapping) else None):
        found = vars(found) if isinstance(found, Namespace) else found
        if isinstance(found, Mapping) and found:
            return found
    return {}


def _current_names(weights: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """Rename the weights as in the newest version of fairseq."""
    renamed = {}
    for name, weight in weights.items():
        name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
        if joined := re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name):
            if not weight.dim() or len(weight) % 3:
                raise UserError(f"{source}: {name} has shape {list(weight.shape)}, which has no three equal parts")
            for part, separate in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{joined[1]}{part}_proj.{joined[2]}"] = separate
        elif not _ADDS_NOTHING.fullmatch(name):
            renamed[name] = weight
    return renamed


def _without_tied(weights: Mapping[str, Tensor], embeddings: str, source: Path) -> dict[str, Tensor]:
    """Drop the language model head's copies of the token embeddings and of its bias."""
    kept = {}
    for name, weight in weights.items():
        short = name.removeprefix("roberta.").removeprefix("mpnet.")
        first = embeddings if short in _OUTPUT_WEIGHTS else name.replace("decoder.bias", "bias")
        if short not in (*_OUTPUT_WEIGHTS, _OUTPUT_BIAS):
            kept[name] = weight
        elif first not in weights or not torch.equal(weights[first], weight):
            raise UserError(f"{source}: {name} differs from {first}, but this package ties the two")
    return kept
