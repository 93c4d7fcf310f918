"""Readers for encoders from elsewhere: ``transformers`` directories and checkpoints of fairseq's RoBERTa.

Reading a file never runs code from it.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data
from mae_lm_fairseq.checkpoints.info import MULTI_LABEL, ModelInfo, SentenceTask, WordTask
from mae_lm_fairseq.checkpoints.original import CONFIG, Original, stock_files
from mae_lm_fairseq.checkpoints.token_order import TokenOrder, token_order
from mae_lm_fairseq.checkpoints.validation import head_names
from mae_lm_fairseq.huggingface.families import Family, find_family, folded, read_config
from mae_lm_fairseq.huggingface.names import EMBEDDINGS, FAIRSEQ, LM_BIAS, LM_WEIGHT, Part, names_of
from mae_lm_fairseq.huggingface.task_classes import FINETUNED, SENTENCES, WORDS
from mae_lm_fairseq.huggingface.tokenizer import load_tokenizer, transformers_errors
from mae_lm_fairseq.huggingface.weight_files import floats, read_weights
from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.hugging_face_tokenizer import TOKENIZER_JSON, HuggingFaceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, PAD, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_bytes

_ADDS_NOTHING = re.compile(r"(\w+\.)?embeddings\.(position_ids|token_type_ids)|encoder\.sentence_encoder\.version")
"""Entries that are no weights."""
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""Names in checkpoints that were converted from TensorFlow, such as bert-base-uncased."""


@dataclass(frozen=True)
class ForeignModel:
    """An encoder as read from its files.

    Attributes:
        kind: ``model_type`` of the configuration, or ``fairseq``.
        naming: column of the table of names.
        values: values of the encoder's options.
        weights: float32 weights under their original names, without output weights that are tied to the token
            embeddings.
        symbols: the dictionary in id order.
        tokenizer: the tokenizer, if it gives these ids.
        order: order of the rows in the weights.
        original: what the network has no place for.
        about: the task, if the configuration is that of a fine-tuned model.
    """

    kind: str
    naming: str
    values: dict[str, Any]
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    tokenizer: Tokenizer | None
    order: TokenOrder
    original: Original | None = None
    about: ModelInfo = ModelInfo()


def read_stock(directory: Path) -> ForeignModel:
    """Read a ``transformers`` directory."""
    path = directory / CONFIG
    config = read_config(read_bytes(path), path)
    family = find_family(config, path)
    _refuse_other_computation(family, config, path)
    values = {ours: config[theirs] for theirs, ours in family.options.items()} | family.constants
    pad, positions = config["pad_token_id"], config["max_position_embeddings"]
    if type(pad) is not int or type(positions) is not int:
        raise UserError(f"{path}: pad_token_id {pad!r} and max_position_embeddings {positions!r} must be numbers")
    values["max_positions"] = positions - family.first_position(pad)
    weights = _with_usual_names(read_weights(directory), family)
    is_untied = config.get("tie_word_embeddings") is False and predicts(weights, family.naming)
    values["untie_output_weights"] = is_untied
    weights = _without_tied(weights, family.naming, is_untied, directory)
    about = _task(config, path)
    labels_words = isinstance(about.finetuned_on, WordTask)
    uses_pooler = family.naming == "bert" and "classifier.weight" in weights and not labels_words
    weights, kept = _without_kept(weights, family, is_untied, uses_pooler)
    tokenizer = _stock_tokenizer(directory)
    order = replace(token_order(tokenizer, tokenizer.mask + 1), first_position=family.first_position(pad))
    if order.pad != pad:
        raise UserError(f"{path}: pad_token_id is {pad}, but the tokenizer's token for padding has the id {order.pad}")
    _check_vocabulary(weights.get(f"{family.naming}.embeddings.word_embeddings.weight"), tokenizer, directory)
    original = Original(stock_files(directory), kept)
    kind, symbols = config["model_type"], (*tokenizer.symbols, MASK)
    return ForeignModel(kind, family.naming, values, weights, symbols, tokenizer, order, original, about)


def _task(config: Mapping[str, Any], path: Path) -> ModelInfo:
    """Return the task of a fine-tuned model.

    A configuration does not say whether sentences are pairs, nor whether questions may have no answer.
    """
    classes = config.get("architectures")
    architecture = str(classes[0]) if isinstance(classes, list) and classes else ""
    task = next((task for task in FINETUNED if architecture.endswith(task.ending)), None)
    if task is None:
        return ModelInfo()
    if task is WORDS:
        return ModelInfo(task=task.task, finetuned_on=WordTask(labels=_labels(config, path)))
    if task is not SENTENCES:
        return ModelInfo(task=task.task)
    if config.get("problem_type") == MULTI_LABEL:
        return ModelInfo(problem_type=MULTI_LABEL)
    labels = _labels(config, path)
    known = {"labels": labels} if len(labels) > 1 else {"labels": (), "score_range": (0, 1)}
    described = SentenceTask(path.resolve().parent.name, task.head, columns=(), **known)
    return ModelInfo(task=task.task, finetuned_on=described)


def _labels(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    names = config["id2label"]
    try:
        by_number = {int(number): str(name) for number, name in names.items()}
        return tuple(by_number[index] for index in range(len(names)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{path}: id2label does not map 0, 1, 2, ... to the names of labels; correct it") from None


def _refuse_other_computation(family: Family, config: Mapping[str, Any], path: Path):
    """Reject a configuration that differs from our encoder in a value that has no option here."""
    for name, ours in family.required.items():
        if (theirs := config.get(name, ours[-1])) not in ours:
            raise UserError(f"{path}: {name} is {theirs!r}, but this package only supports {ours[0]!r}")


def _with_usual_names(weights: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Return weights with the names of a model with a head, without entries that are no weights."""
    usual = {}
    for name, weight in weights.items():
        if not _ADDS_NOTHING.fullmatch(name):
            for before, now in _OLD_ENDS.items():
                name = name.removesuffix(before) + now if name.endswith(before) else name
            usual[name] = weight
    is_bare = not any(name.startswith(f"{family.naming}.") for name in usual)
    return {f"{family.naming}.{name}": weight for name, weight in usual.items()} if is_bare else usual


def predicts(weights: Mapping[str, Tensor], naming: str) -> bool:
    """Return whether there is a language model head."""
    return any(name in weights for name in names_of([Part.lm_head], naming).values())


def _without_kept(
    weights: Mapping[str, Tensor], family: Family, is_untied: bool, uses_pooler: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights that our network has a place for, and those to keep for an export.

    All text has the first token type, so that its embedding is added to the position embeddings.
    """
    used, kept = {}, {}
    for name, weight in weights.items():
        is_pooler = name.startswith(family.pooler) and not uses_pooler
        is_kept = is_pooler or name == family.segments or name.startswith("cls.seq_relationship.")
        (kept if is_kept else used)[name] = weight
    bias, own_bias = (names_of([part], family.naming)[LM_BIAS] for part in (Part.lm_head, Part.output_weights))
    if is_untied and bias != own_bias and bias in used:  # transformers adds the bias of the output weights only
        kept[bias] = used.pop(bias)
        used.setdefault(own_bias, kept[bias])
    segments, positions = kept.get(family.segments), used.get(family.positions)
    if positions is not None:
        kept[family.positions] = positions
        used[family.positions] = folded(positions, segments)
    return used, kept


def _stock_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer in a directory, as ``transformers`` builds it.

    A sentencepiece model whose pieces are the tokens is preferred to the fast tokenizer that was made from it.
    """
    loaded = load_tokenizer(directory)
    with transformers_errors(directory):
        content = loaded.backend_tokenizer.to_str().encode()
        bare, whole = (loaded("a", add_special_tokens=special) for special in (False, True))
    tokenizer = HuggingFaceTokenizer(directory / TOKENIZER_JSON, content)
    bos, eos = tokenizer.exported_ids[[BOS, EOS]].tolist()
    if whole["input_ids"] != [bos, *bare["input_ids"], eos] or any(whole.get("token_type_ids", [])):
        tokens = " ".join(loaded.convert_ids_to_tokens(whole["input_ids"]))
        raise UserError(
            f"{directory}: its tokenizer makes {tokens!r} of the text 'a'; this package only supports "
            f"{tokenizer.token(BOS)} before a text and {tokenizer.token(EOS)} after it"
        )
    found = find_tokenizer(directory) if (directory / TOKENIZER).exists() else None
    is_same = found is not None and np.array_equal(tokenizer.exported_ids, found.exported_ids)
    return found if is_same and found.symbols == tokenizer.symbols else tokenizer


def _check_vocabulary(embeddings: Tensor | None, tokenizer: Tokenizer, directory: Path):
    if embeddings is not None and embeddings.dim() and len(embeddings) != tokenizer.mask + 1:
        raise UserError(
            f"{directory}: has embeddings of {len(embeddings)} tokens, but its tokenizer, special tokens included, has "
            f"{tokenizer.mask + 1}; dict.txt cannot represent the difference"
        )


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
    weights = _current_names(floats(state["model"], path))
    if head_names(weights) and options.get("pooler_activation_fn", "tanh") != "tanh":
        raise UserError(
            f"{path}: the activation function of its head is {options['pooler_activation_fn']}, but this package only "
            "supports tanh"
        )
    positions = weights.get("encoder.sentence_encoder.embed_positions.weight")
    if None in [values[name] for name in names] or positions is None or not positions.dim():
        raise UserError(f"{path} is not a checkpoint of fairseq's RoBERTa")
    is_untied = options.get("untie_weights_roberta") is True
    values |= {"max_positions": len(positions) - PAD - 1, "relative_buckets": 0, "untie_output_weights": is_untied}
    weights = _without_tied(weights, FAIRSEQ, is_untied, path)
    symbols = read_symbols(data_bin / DICTIONARY)
    tokenizer = find_tokenizer(data_bin)
    is_its_own = tokenizer is not None and (*tokenizer.symbols, MASK) == symbols
    order = token_order(None, len(symbols))
    return ForeignModel(FAIRSEQ, FAIRSEQ, values, weights, symbols, tokenizer if is_its_own else None, order)


def _options(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model's options, which are in different places in different versions of fairseq."""
    args, cfg = state.get("args"), state.get("cfg")
    for found in (args, cfg.get("model") if isinstance(cfg, Mapping) else None):
        found = vars(found) if isinstance(found, Namespace) else found
        if isinstance(found, Mapping) and found:
            return found
    return {}


def _current_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in weights.items():
        name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
        if joined := re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name):
            for part, separate in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{joined[1]}{part}_proj.{joined[2]}"] = separate
        elif not _ADDS_NOTHING.fullmatch(name):
            renamed[name] = weight
    return renamed


def _without_tied(weights: Mapping[str, Tensor], naming: str, is_untied: bool, source: Path) -> dict[str, Tensor]:
    """Drop the language model head's copies of the token embeddings and of its bias."""
    if is_untied:
        return dict(weights)
    embeddings = names_of([Part.encoder], naming)[EMBEDDINGS]
    output, bias = names_of([Part.output_weights], naming), names_of([Part.lm_head], naming)[LM_BIAS]
    copies = {output[LM_WEIGHT]: embeddings} | ({output[LM_BIAS]: bias} if output[LM_BIAS] != bias else {})
    kept = {}
    for name, weight in weights.items():
        if name not in copies:
            kept[name] = weight
        elif copies[name] not in weights or not torch.equal(weights[copies[name]], weight):
            raise UserError(f"{source}: {name} differs from {copies[name]}, but its configuration ties the two")
    return kept
