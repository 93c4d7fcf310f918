"""Readers for encoders from elsewhere: ``transformers`` directories and checkpoints of fairseq's RoBERTa.

Reading a file never runs code from it. :func:`~mae_lm_fairseq.trained.checkpoint_file.content_errors` converts
what Python or torch raise because of its content.
"""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.tokenizer import MASK, PAD, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import as_loaded, find_tokenizer, load_from_transformers
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, value_at
from mae_lm_fairseq.trained.huggingface.families import FAMILIES, Family, folded, read_config
from mae_lm_fairseq.trained.huggingface.names import (
    EMBEDDINGS,
    FAIRSEQ,
    LM_BIAS,
    LM_WEIGHT,
    NAMES,
    Part,
    names_of,
    to_ours,
)
from mae_lm_fairseq.trained.huggingface.task_classes import (
    ANSWERS,
    ENCODER,
    FINETUNED,
    MASKED_LM,
    SENTENCES,
    WORDS,
    TaskClass,
)
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_sequence, tokens_of
from mae_lm_fairseq.trained.huggingface.weight_files import floats, read_weights, transformers_errors
from mae_lm_fairseq.trained.info import MULTI_LABEL, ModelInfo, SentenceTask, WordTask
from mae_lm_fairseq.trained.original import CONFIG, Original, stock_files
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.trained.token_order import token_order
from mae_lm_fairseq.trained.validation import head_names, network_config
from mae_lm_fairseq.utils.files import read_bytes, read_json
from mae_lm_fairseq.wrapped.network import ENCODER_MODEL, describe, options_of, stock_class, stock_config

_ADDS_NOTHING = re.compile(r"(\w+\.)?embeddings\.(position_ids|token_type_ids)|encoder\.sentence_encoder\.version")
"""Entries that are no weights."""
_FAIRSEQ_OPTIONS = (
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "dropout",
    "attention_dropout",
)
"""Options of fairseq's RoBERTa that have the same names here."""


def read_stock(directory: Path, preset: str) -> Pretrained:
    """Read a ``transformers`` directory whose encoder and head are converted; what it lacks is missing.

    Raises:
        UserError: if a file is missing or could run code.
        ValueError: if the encoder computes something else than ours.
    """
    config, task = _described(directory)
    family = FAMILIES[config["model_type"]]
    naming = family.naming
    for name, accepted in family.required.items():
        value = config.get(name, accepted[-1])
        if value not in accepted:
            raise ValueError(f"{name} is {value!r}, but this package only supports {accepted[0]!r}")
    pad = config["pad_token_id"]
    if pad is None:
        raise ValueError("pad_token_id is null; set it to the id of the token for padding")
    first_position = family.first_position(pad)

    weights = _with_usual_names(read_weights(directory), naming)
    is_untied = config.get("tie_word_embeddings") is False and _predicts(weights, naming)
    weights = _without_tied(weights, naming, is_untied)
    if task.part not in NAMES[naming]:
        raise ValueError("DistilBERT's classification head uses ReLU, and ours tanh; import the pretrained model")
    uses_pooler = naming == "bert" and task is SENTENCES
    weights, kept = _without_kept(weights, family, is_untied, uses_pooler)

    tokenizer, symbols = _stock_tokenizer(directory)
    order = replace(token_order(tokenizer, len(symbols)), first_position=first_position)
    if order[PAD] != pad:
        raise ValueError(f"pad_token_id is {pad}, but the tokenizer's token for padding has the id {order[PAD]}")
    original = Original(stock_files(directory), kept)
    positions = config["max_position_embeddings"] - first_position
    options = {"max_positions": positions, "untie_output_weights": is_untied}
    network = _network(preset, family.values(config) | options)
    converted = order.restored(_renamed(weights, naming, network, task), network)
    return Pretrained(network, converted, symbols, tokenizer, _about(task, config, directory), original)


def _described(directory: Path) -> tuple[dict[str, Any], TaskClass]:
    """Return the configuration of a directory, and the class; that of a language model if it has no task."""
    path = directory / CONFIG
    config = read_config(read_bytes(path), path)
    architecture = (config.get("architectures") or [""])[0]
    for task in FINETUNED:
        if architecture.endswith(task.ending):
            return config, task
    return config, MASKED_LM


def _network(preset: str, values: Mapping[str, Any]) -> MaskedAutoencoderConfig:
    return network_config(vars(preset_config(preset, "base")) | values)


def read_wrapped(directory: Path, preset: str) -> Pretrained:
    """Read a ``transformers`` directory whose encoder and head are used as they are; what it lacks is missing.

    Raises:
        UserError: if a file is missing or could run code.
        ValueError: if the model cannot be used.
    """
    config, task = _described(directory)
    if task is SENTENCES and config.get("classifier_pooling", "cls") != "cls":
        raise ValueError("its head reads the mean of a text's hidden states, and this package only supports the first")
    description = describe(read_json(directory / CONFIG, dict, "restore it"))
    network = _network(preset, options_of(description))
    stored = {name: weight for name, weight in read_weights(directory).items() if not _ADDS_NOTHING.fullmatch(name)}
    with transformers_errors(directory):
        model, loading = stock_class(description, task.ending).from_pretrained(
            None,
            config=stock_config(description, num_labels=len(config["id2label"])),
            state_dict=dict(stored),
            output_loading_info=True,
            dtype=torch.float32,
        )
    missing, unexpected = loading["missing_keys"], loading["unexpected_keys"]
    state = model.state_dict()
    prefix = f"{model.base_model_prefix}."
    of_head = {name for name in state if not name.startswith(prefix)}
    has_head = task is not MASKED_LM or not of_head.isdisjoint(stored)
    problems = {name for name in (*missing, *unexpected) if name.startswith(prefix) and "pooler." not in name}
    if has_head:
        problems.update(missing)
    if problems:
        raise ValueError(f"{min(problems)} is missing or unknown")

    weights = {}
    head = task.wrapped_head(task.head)
    for name, weight in state.items():
        in_encoder = name.removeprefix(prefix)
        if in_encoder != name and not in_encoder.startswith("pooler."):
            weights[ENCODER_MODEL + in_encoder] = weight
        elif not missing:
            weights[head + name] = weight
    tokenizer, symbols = _stock_tokenizer(directory)
    weights = token_order(tokenizer, len(symbols)).restored(weights, network)

    unused = re.compile("|".join(model._keys_to_ignore_on_load_unexpected or ["(?!)"]))
    kept = {}
    for name, weight in stored.items():
        if name in unexpected or (name not in state and unused.search(name)):
            kept[name] = weight
    original = Original(stock_files(directory), kept)
    return Pretrained(network, weights, symbols, tokenizer, _about(task, config, directory), original)


def _about(task: TaskClass, config: Mapping[str, Any], directory: Path) -> ModelInfo:
    about = ModelInfo(imported_from=config["model_type"], task=task.task)
    # A configuration does not say whether sentences are pairs, nor whether questions may have no answer.
    if task in (MASKED_LM, ANSWERS):
        return about
    if task is SENTENCES and config.get("problem_type") == MULTI_LABEL:
        return replace(about, task=None, problem_type=MULTI_LABEL)
    names = {int(number): str(name) for number, name in config["id2label"].items()}
    labels = tuple(names[number] for number in range(len(names)))
    if task is WORDS:
        return replace(about, finetuned_on=WordTask(labels=labels))
    known = {"labels": labels} if len(labels) > 1 else {"labels": (), "score_range": (0, 1)}
    return replace(about, finetuned_on=SentenceTask(directory.resolve().name, task.head, columns=(), **known))


def _with_usual_names(weights: Mapping[str, Tensor], naming: str) -> dict[str, Tensor]:
    usual = {}
    for name, weight in weights.items():
        if not _ADDS_NOTHING.fullmatch(name):
            # So they are called in checkpoints that were converted from TensorFlow, such as bert-base-uncased.
            name = re.sub(r"\.gamma$", ".weight", name)
            name = re.sub(r"\.beta$", ".bias", name)
            usual[name] = weight
    if any(name.startswith(f"{naming}.") for name in usual):
        return usual
    return {f"{naming}.{name}": weight for name, weight in usual.items()}


def _predicts(weights: Mapping[str, Tensor], naming: str) -> bool:
    """Return whether there is a language model head."""
    return any(name in weights for name in names_of([Part.lm_head], naming).values())


def _without_kept(
    weights: Mapping[str, Tensor], family: Family, is_untied: bool, uses_pooler: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    used, kept = {}, {}
    for name, weight in weights.items():
        is_pooler = name.startswith(family.pooler) and not uses_pooler
        if is_pooler or name == family.segments or name.startswith("cls.seq_relationship."):
            kept[name] = weight
        else:
            used[name] = weight

    bias = names_of([Part.lm_head], family.naming)[LM_BIAS]
    untied_bias = names_of([Part.output_weights], family.naming)[LM_BIAS]
    if is_untied and bias != untied_bias and bias in used:  # transformers adds the bias of the output weights only
        kept[bias] = used.pop(bias)
        used.setdefault(untied_bias, kept[bias])

    positions = family.positions
    if positions not in used:
        raise ValueError(f"{positions} is missing from its weights")
    # All text has the first token type.
    kept[positions] = used[positions]
    used[positions] = folded(kept[positions], kept.get(family.segments))
    return used, kept


def _renamed(
    weights: Mapping[str, Tensor], naming: str, config: MaskedAutoencoderConfig, task: TaskClass
) -> dict[str, Tensor]:
    """Return weights, without output weights that are tied, by our names; raise a ValueError for one without a name."""
    if task is MASKED_LM and not _predicts(weights, naming):
        task = ENCODER
    names = task.names(naming, config, task.head)
    for name in names.values():
        if name not in weights:
            raise ValueError(f"{name} is missing from its weights, which its {CONFIG} calls for")
    unused = weights.keys() - set(names.values())
    if task.head:  # fairseq keeps the language model head in fine-tuning
        unused -= set(names_of([Part.lm_head, Part.output_weights], naming).values())
    if unused:
        raise ValueError(f"{min(unused)} is unknown to this package, as are {len(unused) - 1} other weights")
    return to_ours(weights, names)


def _stock_tokenizer(directory: Path) -> tuple[Tokenizer, tuple[str, ...]]:
    """Return the tokenizer of a directory, and the symbols of the dictionary that it has here."""
    loaded = load_from_transformers(directory)
    tokenizer = as_loaded(loaded, directory)
    text = "One."
    with transformers_errors(directory):
        encoded = loaded(text, verbose=False)
    theirs = encoded["input_ids"]
    [ids] = tokenizer.encode_lines([text])
    ours = exported_sequence(tokenizer, ids)
    if theirs != ours or any(encoded.get("token_type_ids", [])):
        tokens, our_tokens = tokens_of(theirs, loaded), tokens_of(ours, loaded)
        raise ValueError(f"its tokenizer makes {tokens!r:.200} of the text {text!r}; here it is {our_tokens!r:.200}")
    return tokenizer, (*tokenizer.symbols, MASK)


def read_fairseq(path: Path, data_bin: Path, preset: str) -> Pretrained:
    """Read a checkpoint of fairseq's RoBERTa, and the dictionary in a directory.

    Raises:
        UserError, ValueError: as for :func:`read_stock`.
    """
    state = load_as_data(path)
    # The options are in different places in different versions of fairseq.
    options = state.get("args") or value_at(state, "cfg", "model")
    if isinstance(options, Namespace):
        options = vars(options)
    for name, supported in {"activation_fn": "gelu", "pooler_activation_fn": "tanh"}.items():
        value = options.get(name, supported)
        if value != supported:
            raise ValueError(f"its {name} is {value}, but this package only supports {supported}")
    values = {name: options[name] for name in _FAIRSEQ_OPTIONS}
    weights = _current_names(floats(state["model"], path))
    positions = len(weights["encoder.sentence_encoder.embed_positions.weight"])
    is_untied = options.get("untie_weights_roberta") is True
    values |= {"max_positions": positions - PAD - 1, "relative_buckets": 0, "untie_output_weights": is_untied}
    weights = _without_tied(weights, FAIRSEQ, is_untied)

    symbols = read_symbols(data_bin / DICTIONARY)
    tokenizer = find_tokenizer(data_bin)
    if tokenizer is not None and (*tokenizer.symbols, MASK) != symbols:
        tokenizer = None
    heads = head_names(weights)
    task = replace(SENTENCES, head=heads[0]) if heads else MASKED_LM
    network = _network(preset, values)
    converted = _renamed(weights, FAIRSEQ, network, task)
    return Pretrained(network, converted, symbols, tokenizer, ModelInfo(imported_from=FAIRSEQ))


def _current_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in weights.items():
        name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
        if match := re.fullmatch(r"(.*\.self_attn\.)in_proj_(weight|bias)", name):
            for part, separate in zip("qkv", weight.chunk(3), strict=True):
                renamed[f"{match[1]}{part}_proj.{match[2]}"] = separate
        elif not _ADDS_NOTHING.fullmatch(name):
            renamed[name] = weight
    return renamed


def _without_tied(weights: Mapping[str, Tensor], naming: str, is_untied: bool) -> dict[str, Tensor]:
    if is_untied:
        return dict(weights)
    copies = names_of([Part.output_weights], naming)
    firsts = {
        copies[LM_WEIGHT]: names_of([Part.encoder], naming)[EMBEDDINGS],
        copies[LM_BIAS]: names_of([Part.lm_head], naming)[LM_BIAS],
    }
    kept = dict(weights)
    for copy, first in firsts.items():
        if copy not in weights or copy == first:
            continue
        weight = kept.pop(copy)
        if not torch.equal(kept.setdefault(first, weight), weight):
            raise ValueError(f"{copy} differs from {first}, but its configuration ties the two")
    return kept
