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
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, PAD, Tokenizer
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
from mae_lm_fairseq.trained.huggingface.task_classes import ANSWERS, FINETUNED, SENTENCES, WORDS, TaskClass
from mae_lm_fairseq.trained.huggingface.weight_files import floats, read_weights, transformers_errors
from mae_lm_fairseq.trained.info import MULTI_LABEL, ModelInfo, SentenceTask, WordTask
from mae_lm_fairseq.trained.original import CONFIG, Original, stock_files
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.trained.token_order import token_order
from mae_lm_fairseq.trained.validation import HEADS, head_names, network_config, token_weights
from mae_lm_fairseq.utils.files import read_bytes, read_json
from mae_lm_fairseq.wrapped.network import ENCODER_MODEL, LM_HEAD, describe, options_of, stock_class, stock_config

_ADDS_NOTHING = re.compile(r"(\w+\.)?embeddings\.(position_ids|token_type_ids)|encoder\.sentence_encoder\.version")
"""Entries that are no weights."""
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""Names in checkpoints that were converted from TensorFlow, such as bert-base-uncased."""


def read_stock(directory: Path, preset: str) -> Pretrained:
    """Read a ``transformers`` directory whose encoder and head are converted; what it lacks is missing.

    Raises:
        UserError: if a file is missing or could run code.
        ValueError: if the encoder computes something else than ours.
    """
    config, task = _described(directory)
    family = FAMILIES[config["model_type"]]
    for name, ours in family.required.items():
        if (theirs := config.get(name, ours[-1])) not in ours:
            raise ValueError(f"{name} is {theirs!r}, but this package only supports {ours[0]!r}")
    values = {ours: config[theirs] for theirs, ours in family.options.items()} | family.constants
    pad = config["pad_token_id"]
    if pad is None:
        raise ValueError("pad_token_id is null; set it to the id of the token for padding")
    values["max_positions"] = config["max_position_embeddings"] - family.first_position(pad)
    weights = _with_usual_names(read_weights(directory), family)
    is_untied = config.get("tie_word_embeddings") is False and _predicts(weights, family.naming)
    values["untie_output_weights"] = is_untied
    weights = _without_tied(weights, family.naming, is_untied)
    if task and task.part not in NAMES[family.naming]:
        raise ValueError("DistilBERT's classification head uses ReLU, and ours tanh; import the pretrained model")
    uses_pooler = family.naming == "bert" and task is SENTENCES
    weights, kept = _without_kept(weights, family, is_untied, uses_pooler)
    tokenizer = _stock_tokenizer(directory)
    order = replace(token_order(tokenizer, tokenizer.mask + 1), first_position=family.first_position(pad))
    if order[PAD] != pad:
        raise ValueError(f"pad_token_id is {pad}, but the tokenizer's token for padding has the id {order[PAD]}")
    original = Original(stock_files(directory), kept)
    network = network_config(vars(preset_config(preset, "base")) | values)
    converted = order.restored(_renamed(weights, family.naming, network, task))
    symbols, about = (*tokenizer.symbols, MASK), _about(task, config, directory)
    return Pretrained(network, converted, symbols, tokenizer, about, original)


def _described(directory: Path) -> tuple[dict[str, Any], TaskClass | None]:
    config = read_config(read_bytes(directory / CONFIG), directory / CONFIG)
    architecture = (config.get("architectures") or [""])[0]
    return config, next((task for task in FINETUNED if architecture.endswith(task.ending)), None)


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
    network = network_config(vars(preset_config(preset, "base")) | options_of(description))
    ending, head = (task.ending, f"{HEADS}{task.head}.{task.ending}.") if task else ("ForMaskedLM", LM_HEAD)
    stored = {name: weight for name, weight in read_weights(directory).items() if not _ADDS_NOTHING.fullmatch(name)}
    with transformers_errors(directory):
        model, loading = stock_class(description, ending).from_pretrained(
            None,
            config=stock_config(description, num_labels=len(config["id2label"])),
            state_dict=dict(stored),
            output_loading_info=True,
            dtype=torch.float32,
        )
    prefix, missing, unexpected = f"{model.base_model_prefix}.", loading["missing_keys"], loading["unexpected_keys"]
    of_encoder = [name for name in (*missing, *unexpected) if name.startswith(prefix) and "pooler." not in name]
    state = model.state_dict()
    has_head = task or any(name in stored for name in state if not name.startswith(prefix))
    if problems := sorted({*of_encoder, *(missing if has_head else ())}):
        raise ValueError(f"{problems[0]} is missing or unknown")
    weights = {}
    for name, weight in state.items():
        own = name.removeprefix(prefix)
        if own != name and not own.startswith("pooler."):
            weights[f"{ENCODER_MODEL}{own}"] = weight
        elif not missing:
            weights[f"{head}{name}"] = weight
    tokenizer = _stock_tokenizer(directory)
    weights = token_order(tokenizer, tokenizer.mask + 1).restored(weights, token_weights(network))
    unused = re.compile("|".join(model._keys_to_ignore_on_load_unexpected or ["(?!)"]))
    kept = {x: weight for x, weight in stored.items() if x in unexpected or (x not in state and unused.search(x))}
    original = Original(stock_files(directory), kept)
    return Pretrained(
        network, weights, (*tokenizer.symbols, MASK), tokenizer, _about(task, config, directory), original
    )


def _about(task: TaskClass | None, config: Mapping[str, Any], directory: Path) -> ModelInfo:
    about = ModelInfo(imported_from=config["model_type"], task=task and task.task)
    # A configuration does not say whether sentences are pairs, nor whether questions may have no answer.
    if task is None or task is ANSWERS:
        return about
    if task is SENTENCES and config.get("problem_type") == MULTI_LABEL:
        return replace(about, task=None, problem_type=MULTI_LABEL)
    names = {int(number): str(name) for number, name in config["id2label"].items()}
    labels = tuple(names[number] for number in range(len(names)))
    if task is WORDS:
        return replace(about, finetuned_on=WordTask(labels=labels))
    known = {"labels": labels} if len(labels) > 1 else {"labels": (), "score_range": (0, 1)}
    return replace(about, finetuned_on=SentenceTask(directory.resolve().name, task.head, columns=(), **known))


def _with_usual_names(weights: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    usual = {}
    for name, weight in weights.items():
        if not _ADDS_NOTHING.fullmatch(name):
            for before, now in _OLD_ENDS.items():
                name = name.removesuffix(before) + now if name.endswith(before) else name
            usual[name] = weight
    is_bare = not any(name.startswith(f"{family.naming}.") for name in usual)
    return {f"{family.naming}.{name}": weight for name, weight in usual.items()} if is_bare else usual


def _predicts(weights: Mapping[str, Tensor], naming: str) -> bool:
    """Return whether there is a language model head."""
    return any(name in weights for name in names_of([Part.lm_head], naming).values())


def _without_kept(
    weights: Mapping[str, Tensor], family: Family, is_untied: bool, uses_pooler: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    used, kept = {}, {}
    for name, weight in weights.items():
        is_pooler = name.startswith(family.pooler) and not uses_pooler
        is_kept = is_pooler or name == family.segments or name.startswith("cls.seq_relationship.")
        (kept if is_kept else used)[name] = weight
    bias, own_bias = (names_of([part], family.naming)[LM_BIAS] for part in (Part.lm_head, Part.output_weights))
    if is_untied and bias != own_bias and bias in used:  # transformers adds the bias of the output weights only
        kept[bias] = used.pop(bias)
        used.setdefault(own_bias, kept[bias])
    if family.positions not in used:
        raise ValueError(f"{family.positions} is missing from its weights")
    # All text has the first token type.
    kept[family.positions] = used[family.positions]
    used[family.positions] = folded(used[family.positions], kept.get(family.segments))
    return used, kept


def _renamed(
    weights: Mapping[str, Tensor], naming: str, config: MaskedAutoencoderConfig, task: TaskClass | None
) -> dict[str, Tensor]:
    """Return weights, without output weights that are tied, by our names; raise a ValueError for one without a name."""
    parts, lm_head = [Part.encoder, *([task.part] if task else [])], (Part.lm_head, Part.output_weights)
    if not task and _predicts(weights, naming):
        parts += lm_head[: 1 + config.untie_output_weights]
    names = names_of(parts, naming, config.encoder_layers, task.head if task else "")
    unused = weights.keys() - set(names.values())
    if task:  # fairseq keeps the language model head in fine-tuning
        unused -= set(names_of(lm_head, naming).values())
    if missing := [name for name in names.values() if name not in weights]:
        raise ValueError(f"{missing[0]} is missing from its weights, which its {CONFIG} calls for")
    if unused:
        raise ValueError(f"{min(unused)} is unknown to this package, as are {len(unused) - 1} other weights")
    return to_ours(weights, names)


def _stock_tokenizer(directory: Path) -> Tokenizer:
    loaded = load_from_transformers(directory)
    tokenizer = as_loaded(loaded, directory)
    text = "One."
    with transformers_errors(directory):
        theirs = loaded(text, verbose=False)
    expected = tokenizer.exported_ids[[BOS, *tokenizer.encode_lines([text])[0], EOS]].tolist()
    if theirs["input_ids"] != expected or any(theirs.get("token_type_ids", [])):
        tokens, here = (" ".join(loaded.convert_ids_to_tokens(ids)) for ids in (theirs["input_ids"], expected))
        raise ValueError(f"its tokenizer makes {tokens!r:.200} of the text {text!r:.80}; here it is {here!r:.200}")
    return tokenizer


def read_fairseq(path: Path, data_bin: Path, preset: str) -> Pretrained:
    """Read a checkpoint of fairseq's RoBERTa, and the dictionary in a directory.

    Raises:
        UserError, ValueError: as for :func:`read_stock`.
    """
    state = load_as_data(path)
    # The options are in different places in different versions of fairseq.
    options = state.get("args") or value_at(state, "cfg", "model")
    options = vars(options) if isinstance(options, Namespace) else options
    for name, ours in (("activation_fn", "gelu"), ("pooler_activation_fn", "tanh")):
        if options.get(name, ours) != ours:
            raise ValueError(f"its {name} is {options[name]}, but this package only supports {ours}")
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    values = {name: options[name] for name in (*sizes, "dropout", "attention_dropout")}
    weights = _current_names(floats(state["model"], path))
    positions = len(weights["encoder.sentence_encoder.embed_positions.weight"])
    is_untied = options.get("untie_weights_roberta") is True
    values |= {"max_positions": positions - PAD - 1, "relative_buckets": 0, "untie_output_weights": is_untied}
    weights = _without_tied(weights, FAIRSEQ, is_untied)
    symbols = read_symbols(data_bin / DICTIONARY)
    tokenizer = find_tokenizer(data_bin)
    is_its_own = tokenizer is not None and (*tokenizer.symbols, MASK) == symbols
    heads = head_names(weights)
    task = replace(SENTENCES, head=heads[0]) if heads else None
    network = network_config(vars(preset_config(preset, "base")) | values)
    converted = token_order(None, len(symbols)).restored(_renamed(weights, FAIRSEQ, network, task))
    about = ModelInfo(imported_from=FAIRSEQ)
    return Pretrained(network, converted, symbols, tokenizer if is_its_own else None, about)


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


def _without_tied(weights: Mapping[str, Tensor], naming: str, is_untied: bool) -> dict[str, Tensor]:
    if is_untied:
        return dict(weights)
    embeddings = names_of([Part.encoder], naming)[EMBEDDINGS]
    output, bias = names_of([Part.output_weights], naming), names_of([Part.lm_head], naming)[LM_BIAS]
    copies = {output[LM_WEIGHT]: embeddings} | ({output[LM_BIAS]: bias} if output[LM_BIAS] != bias else {})
    kept = {name: weight for name, weight in weights.items() if name not in copies}
    for copy in copies.keys() & weights.keys():
        if not torch.equal(kept.setdefault(copies[copy], weights[copy]), weights[copy]):
            raise ValueError(f"{copy} differs from {copies[copy]}, but its configuration ties the two")
    return kept
