"""Other people's encoders in ours: directories of ``transformers`` and checkpoints of fairseq's RoBERTa.

Nothing that is read here can run code.
"""

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..core.autoencoder import MaskedAutoencoder
from ..core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_values
from ..data.data_bin import dictionary_fingerprint
from ..data.dictionary import MASK, read_symbols, write_symbols
from ..data.tokenizer import SPECIALS, Tokenizer
from ..errors import UserError
from .directories import new_directory
from .names import CLASSIFICATION_HEAD, LM_HEAD, SPAN_HEAD, Part, encoder_parts, names_of, to_ours
from .pretrained import DICTIONARY, TOKENIZER, Pretrained, network_config, tied_names
from .stock import HEADS, LAYER_NORM_EPS, MPNET_BUCKETS, MPNET_DISTANCE, SEGMENTS

STOCK_WEIGHTS, STOCK_PICKLE = "model.safetensors", "pytorch_model.bin"
HEAD = "sentence_classification_head"
"""What fairseq's ``sentence_prediction`` calls its head, and we an imported one."""
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
_PAD = SPECIALS.index("<pad>")
_KINDS = {"mpnet": "mpnet", "roberta": "roberta", "xlm-roberta": "roberta"}
"""transformers' ``model_type``, and the family whose names and computation it has."""
_ADDS_NOTHING = re.compile(
    r"((roberta|mpnet)\.)?(pooler\..*|embeddings\.(position_ids|token_type_ids))|encoder\.sentence_encoder\.version"
)
_OUTPUT_WEIGHTS = ("lm_head.decoder.weight", "lm_head.weight", "encoder.lm_head.weight")
_OUTPUT_BIAS = "lm_head.decoder.bias"


@dataclass(frozen=True)
class Foreign:
    """What was found.

    Attributes:
        kind: ``mpnet``, ``roberta`` or ``fairseq``.
        values: of the encoder's knobs.
        weights: under their names, in float32; the output weights, where they are the token embeddings, left out.
        symbols: the dictionary in the order of ids.
        sentencepiece: the tokenizer's model file, where ids are its own as fairseq numbers them.
    """

    kind: str
    values: dict[str, Any]
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    sentencepiece: bytes | None


def import_foreign(path: Path, preset: str, data_bin: Path | None = None, seed: int = 1) -> Pretrained:
    """An encoder of RoBERTa's or MPNet's kind, in a network of ours.

    The language model head is taken over, too; a decoder starts from random weights. What has a head for a task is
    imported without either, as a fine-tuned model.

    Args:
        path: directory of ``transformers``, or checkpoint of fairseq.
        preset: of the network around the encoder.
        data_bin: with a checkpoint, where ``dict.txt`` is; beside the checkpoint where it is None.
        seed: of the random weights.

    Raises:
        UserError: a file is missing or damaged, could run code, or the encoder computes something that ours does not.
    """
    foreign = read_stock(path) if path.is_dir() else read_fairseq(path, data_bin or path.parent)
    defaults = {knob.name: knob.default for knob in fields(MaskedAutoencoderConfig)} | preset_values(preset, "base")
    values = {name: getattr(value, "value", value) for name, value in {**defaults, **foreign.values}.items()}
    config = network_config(values, path)
    parts, head = _parts(foreign, path)
    weights = _under_our_names(foreign, config, parts, head, path)
    if not head:
        weights = _completed(weights, config, len(foreign.symbols), seed)
    about = {"architecture": f"{preset}_base", "imported_from": f"{path.name}, {foreign.kind}"}
    return Pretrained(config, weights, foreign.symbols, foreign.sentencepiece, about)


def _parts(foreign: Foreign, source: Path) -> tuple[tuple[Part, ...], str]:
    """The parts to import, and our name of the head for a task or nothing."""
    encoder, found = encoder_parts(foreign.kind == "mpnet"), foreign.weights.keys()
    if foreign.kind == "fairseq":
        heads = sorted({name.split(".")[1] for name in found if name.startswith(HEADS)})
        if len(heads) > 1:
            raise UserError(f"{source} has several heads ({', '.join(heads)}); one at most can be imported")
        if heads:
            return (*encoder, CLASSIFICATION_HEAD), heads[0]
    elif "classifier.dense.weight" in found:
        return (*encoder, CLASSIFICATION_HEAD), HEAD
    elif "qa_outputs.weight" in found:
        return (*encoder, SPAN_HEAD), HEAD
    has_lm_head = any(name.startswith(getattr(LM_HEAD.prefix, foreign.kind)) for name in found)
    return (*encoder, LM_HEAD) if has_lm_head else encoder, ""


def _under_our_names(
    foreign: Foreign, config: MaskedAutoencoderConfig, parts: tuple[Part, ...], head: str, source: Path
) -> dict[str, Tensor]:
    """The weights of some parts, once they are known to be neither more nor fewer, and of the right shapes."""
    if config.encoder_layers > len(foreign.weights):
        raise UserError(f"{source}: there are fewer weights ({len(foreign.weights)}) than layers in its configuration")
    names = names_of(parts, foreign.kind, config.encoder_layers, head)
    expected = set(names.values())
    if foreign.kind == "roberta":
        expected.add(SEGMENTS)
    found = foreign.weights.keys()
    if head:  # fairseq keeps the language model head in fine-tuning
        found = {name for name in found if not name.startswith(getattr(LM_HEAD.prefix, foreign.kind))}
    if different := sorted(expected ^ found):
        fault = "is missing" if different[0] in expected else "has no place in this package"
        raise UserError(f"{source}: the weight {different[0]} {fault} ({len(different)} such differences)")
    weights = to_ours(_without_segments(foreign.weights), names)
    with torch.device("meta"):
        network = MaskedAutoencoder(config, len(foreign.symbols), _PAD, len(foreign.symbols) - 1)
    for name, expectation in network.state_dict().items():
        weight = weights.get(f"autoencoder.{name}", expectation)
        if weight.shape != expectation.shape:
            raise UserError(
                f"{source}: {name} is of shape {list(weight.shape)}, but configuration and dictionary ask for "
                f"{list(expectation.shape)}"
            )
    return weights


def _without_segments(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All text is of RoBERTa's first kind of segment: where its embedding is not zero, positions take it up."""
    weights = dict(weights)
    segments = weights.pop(SEGMENTS, None)
    if segments is not None and segments[0].any():
        positions = SEGMENTS.replace("token_type", "position")
        weights[positions] = weights[positions] + segments[0]
    return weights


def _completed(
    weights: dict[str, Tensor], config: MaskedAutoencoderConfig, symbols: int, seed: int
) -> dict[str, Tensor]:
    """The weights of a whole network, those that are missing random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MaskedAutoencoder(config, symbols, _PAD, symbols - 1)
    complete = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()} | weights
    return complete | {name: complete[first] for name, first in tied_names(config).items()}


def read_stock(directory: Path) -> Foreign:
    """A directory of ``transformers``."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    kind = _KINDS.get(config.get("model_type")) if isinstance(config, dict) else None
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
    values = {ours: config.get(theirs) for ours, theirs in renamed.items()}
    if isinstance(positions := config.get("max_position_embeddings"), int):
        values["max_positions"] = positions - _PAD - 1
    values |= relative if kind == "mpnet" else {"relative_buckets": 0}
    weights = {name: weight for name, weight in _read_weights(directory).items() if not _ADDS_NOTHING.fullmatch(name)}
    if not any(name.startswith(f"{kind}.") for name in weights):
        weights = {f"{kind}.{name}": weight for name, weight in weights.items()}
    weights = _without_tied(weights, f"{kind}.embeddings.word_embeddings.weight", directory)
    symbols = _stock_symbols(directory)
    return Foreign(kind, values, weights, symbols, _sentencepiece(directory, symbols))


def _refuse_other_computation(config: Mapping[str, Any], path: Path):
    """What our encoder has no knob for must have the value that is fixed in it."""
    fixed = {
        "hidden_act": ("gelu", "gelu"),
        "layer_norm_eps": (LAYER_NORM_EPS, 1e-12),
        "pad_token_id": (_PAD, _PAD),
        "position_embedding_type": ("absolute", "absolute"),
        "is_decoder": (False, False),
        "relative_attention_num_buckets": (MPNET_BUCKETS, MPNET_BUCKETS),
    }
    for name, (ours, default) in fixed.items():
        if (theirs := config.get(name, default)) != ours:
            raise UserError(f"{path}: {name} is {theirs!r}, and in this package it is always {ours!r}")


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
    except Exception as error:  # damage can bring about any of them
        # torch's message is a page long, and advises to switch the safety off.
        if forbidden := re.search(r"GLOBAL (\S+)", str(error)):
            raise UserError(f"refused {path}: loading it could run code, it asks for {forbidden[1]}") from None
        raise UserError(f"{path}: cannot be read, it is damaged or something else") from None


def _floats(weights: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise UserError(f"{path} is not a dictionary of weights")
    return {name: weight.float() for name, weight in weights.items()}


def _stock_symbols(directory: Path) -> tuple[str, ...]:
    from transformers import AutoTokenizer

    try:
        vocabulary = AutoTokenizer.from_pretrained(directory, local_files_only=True).get_vocab()
    except Exception as error:  # of many kinds, and none of them is the user's
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{directory}: its tokenizer cannot be loaded: {reason}") from None
    symbols = tuple(sorted(vocabulary, key=vocabulary.get))
    if sorted(vocabulary.values()) != list(range(len(symbols))):
        raise UserError(f"{directory}: the ids of its tokenizer are not 0, 1, 2, ...")
    if (*symbols[: len(SPECIALS)], symbols[-1]) != (*SPECIALS, MASK):
        raise UserError(
            f"{directory}: its tokens do not begin with {' '.join(SPECIALS)} and end with {MASK}, as fairseq's "
            "dictionary does"
        )
    return symbols


def _sentencepiece(directory: Path, symbols: tuple[str, ...]) -> bytes | None:
    """The model file in a directory, if its pieces are the symbols in their order."""
    path = directory / TOKENIZER
    same = path.exists() and (*Tokenizer(path).symbols, MASK) == symbols
    return path.read_bytes() if same else None


def read_fairseq(path: Path, data_bin: Path) -> Foreign:
    """A checkpoint of fairseq's RoBERTa, with the dictionary in a directory."""
    from ..compat import load_as_data

    state = load_as_data(path)
    options = _options(state)
    if options.get("activation_fn", "gelu") != "gelu":
        raise UserError(f"{path}: its activation function is {options['activation_fn']}, and here it is always gelu")
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    values = {name: options.get(name) for name in (*names, "dropout", "attention_dropout")}
    weights = _current_names(_floats(state["model"], path))
    positions = weights.get("encoder.sentence_encoder.embed_positions.weight")
    if None in [values[name] for name in names] or positions is None:
        raise UserError(f"{path} is not a checkpoint of fairseq's RoBERTa")
    values |= {"max_positions": len(positions) - _PAD - 1, "relative_buckets": 0}
    weights = _without_tied(weights, "encoder.sentence_encoder.embed_tokens.weight", path)
    symbols = read_symbols(data_bin / DICTIONARY)
    return Foreign("fairseq", values, weights, symbols, _sentencepiece(data_bin, symbols))


def _options(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's options, wherever the versions of fairseq keep them."""
    found = state.get("args") or (state.get("cfg") or {}).get("model") or {}
    return vars(found) if isinstance(found, Namespace) else found


def _current_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as the newest version of fairseq calls them."""
    renamed = {}
    for name, weight in weights.items():
        name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
        if joined := re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name):
            for part, separate in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{joined[1]}{part}_proj.{joined[2]}"] = separate
        elif not _ADDS_NOTHING.fullmatch(name):
            renamed[name] = weight
    return renamed


def _without_tied(weights: Mapping[str, Tensor], embeddings: str, source: Path) -> dict[str, Tensor]:
    """The weights without the copies of the token embeddings and of the bias in the language model head."""
    left = {}
    for name, weight in weights.items():
        short = name.removeprefix("roberta.").removeprefix("mpnet.")
        first = embeddings if short in _OUTPUT_WEIGHTS else name.replace("decoder.bias", "bias")
        if short not in (*_OUTPUT_WEIGHTS, _OUTPUT_BIAS):
            left[name] = weight
        elif first not in weights or not torch.equal(weights[first], weight):
            raise UserError(f"{source}: {name} is not {first}, but in this package the two are one weight")
    return left


def write_checkpoint(pretrained: Pretrained, path: Path):
    """Write what fairseq-train takes for a checkpoint: for ``--finetune-from-model`` and everything else."""
    values = {name: getattr(value, "value", value) for name, value in vars(pretrained.config).items()}
    task = "masked_autoencoder_lm" if "autoencoder.lm_head.bias" in pretrained.weights else "sentence_prediction"
    history = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    state = {
        "args": None,
        "cfg": {"model": {"_name": pretrained.about["architecture"], **values}, "task": {"_name": task}},
        "model": pretrained.weights,
        "task_state": {"dictionary": dictionary_fingerprint(pretrained.symbols[:-1])},
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    torch.save(state, path)


def write_import(pretrained: Pretrained, source: Path, out: Path):
    """Write an imported model: ``model.pt``, ``dict.txt``, and its tokenizer.

    A sentencepiece model lies beside the dictionary, as in a data-bin. Any other tokenizer of ``transformers`` is kept
    in ``tokenizer/``; text has to be tokenized with it before fairseq-preprocess.

    Args:
        pretrained: what was imported.
        source: from where.
        out: the directory, which must not exist or be empty.
    """
    with new_directory(out) as directory:
        write_checkpoint(pretrained, directory / "model.pt")
        write_symbols(pretrained.symbols, directory / DICTIONARY)
        if pretrained.sentencepiece is not None:
            (directory / TOKENIZER).write_bytes(pretrained.sentencepiece)
        elif source.is_dir():
            (directory / "tokenizer").mkdir()
            for name in _TOKENIZER_FILES:
                if (source / name).exists():
                    shutil.copyfile(source / name, directory / "tokenizer" / name)


def network_options(pretrained: Pretrained) -> list[str]:
    """The options with which fairseq-train builds the same network."""
    architecture = pretrained.about["architecture"]
    usual = {knob.name: knob.default for knob in fields(MaskedAutoencoderConfig)}
    usual |= preset_values(*ARCHITECTURES[architecture])
    words = ["--arch", architecture]
    for name, value in vars(pretrained.config).items():
        if value != usual[name]:
            words += [f"--{name.replace('_', '-')}", str(getattr(value, "value", value))]
    return words
