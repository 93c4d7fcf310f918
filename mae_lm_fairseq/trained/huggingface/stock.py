"""Conversion of a pretrained or fine-tuned encoder to a stock ``transformers`` model.

With T5's relative position bias the encoder is an MPNet (Song et al., 2020) weight for weight, without it a RoBERTa or,
in pre-norm, a RobertaPreLayerNorm. An imported model becomes one of the family that it came from again, with its other
weights and its own tokenizer.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mae_lm_fairseq.core.config import TRAINING_OPTIONS, MaskedAutoencoderConfig, MaskJoin, RelativeBucketing
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD, UNK
from mae_lm_fairseq.trained.checkpoint_file import content_errors
from mae_lm_fairseq.trained.conversion import predicts
from mae_lm_fairseq.trained.huggingface.families import (
    FAMILIES,
    MPNET_BUCKETS,
    MPNET_DISTANCE,
    MPNET_PAD,
    Family,
    folded,
    read_config,
)
from mae_lm_fairseq.trained.huggingface.names import LM_BIAS, Part, names_of, to_theirs
from mae_lm_fairseq.trained.huggingface.task_classes import (
    ANSWERS,
    ENCODER,
    FINETUNED,
    MASKED_LM,
    SENTENCES,
    WORDS,
    TaskClass,
)
from mae_lm_fairseq.trained.huggingface.weight_files import STOCK_WEIGHTS
from mae_lm_fairseq.trained.original import CONFIG, ORIGINAL, Original
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.trained.token_order import TokenOrder, token_order
from mae_lm_fairseq.trained.validation import class_count, head_kind, head_names, output_layer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.hugging_face import import_transformers, without_code
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.wrapped.network import ENCODER_MODEL, stock_class, stock_config


@dataclass(frozen=True)
class Counterpart:
    """The ``transformers`` equivalent of a network.

    Attributes:
        kind: ``model_type`` of its configuration, one of :data:`FAMILIES`; empty if the encoder is wrapped.
        task: the class.
        order: order of the exported tokens, and the row of the first position.
        head: our name of the head that fine-tuning trained; empty for none.
        original: what an import has kept of a model of this type; None for a new one.
        wrapped: the configuration of a wrapped encoder; None for a converted one.
    """

    kind: str
    task: TaskClass
    order: TokenOrder
    head: str = ""
    original: Original | None = None
    wrapped: str | None = None

    @property
    def family(self) -> Family:
        return FAMILIES[self.kind]

    @property
    def architecture(self) -> str:
        """Name of the class."""
        return self.classes + self.task.ending

    @property
    def classes(self) -> str:
        """Prefix of the names of its type's classes."""
        if self.wrapped is None:
            return self.family.classes
        return stock_class(self.wrapped, self.task.ending).__name__.removesuffix(self.task.ending)

    def takes_our_pairs(self, pretrained: Pretrained) -> bool:
        """Return whether the head may have been trained here on pairs of texts, which this package joins in its way."""
        return self.task in (SENTENCES, ANSWERS) and pretrained.about.imported_from is None

    @property
    def kept(self) -> dict[str, Tensor]:
        """Further weights of the imported model: the pooler of a model without a task, and what was trained with it."""
        if self.original is None or self.head:
            return {}
        weights = self.original.weights
        if self.task is ENCODER:
            return {name: weight for name, weight in weights.items() if "pooler." in name}
        elsewhere = () if self.wrapped else (self.family.positions, self.family.segments)
        return {name: weight for name, weight in weights.items() if name not in elsewhere}

    @property
    def has_unset_pooler(self) -> bool:
        """Whether the encoder's class, ``...Model``, has a pooler for which there are no weights."""
        encoder = getattr(import_transformers(), self.classes + ENCODER.ending)
        has_pooler = any("pooler." in name for name in self.kept)
        return not self.head and not has_pooler and _may_have_pooler(encoder)


def _may_have_pooler(encoder: type) -> bool:
    return "add_pooling_layer" in inspect.signature(encoder).parameters


def counterpart(pretrained: Pretrained) -> Counterpart:
    """Return the ``transformers`` class that computes the same as the network.

    Raises:
        UserError: if no class is equivalent; the message gives the reason.
    """
    task, head = _task(pretrained)
    config, original = pretrained.config, pretrained.original
    order = token_order(pretrained.tokenizer, len(pretrained.symbols))
    if config.wrapped:
        return Counterpart("", task, order, head, original, config.wrapped)
    kind = _original_kind(pretrained)
    if kind is None or (kind == "distilbert" and task is SENTENCES):  # whose head has ReLU
        original = None
        kind = _kind(config)
    if kind == "mpnet":
        _check_mpnet_padding(pretrained, order)
    order = replace(order, first_position=FAMILIES[kind].first_position(order[PAD]))
    return Counterpart(kind, task, order, head, original)


def _task(pretrained: Pretrained) -> tuple[TaskClass, str]:
    config = pretrained.config
    heads = head_names(pretrained.weights)
    if len(heads) > 1:
        raise UserError(f"the model has several heads ({', '.join(heads)}), and classes of transformers have one")
    if not heads:
        fills_masks = encodes_masks(config) and predicts(pretrained)
        return MASKED_LM if fills_masks else ENCODER, ""
    [head] = heads
    kind = head_kind(head, pretrained.weights)
    for task in FINETUNED:
        if kind == (task.ending if config.wrapped else task.module):
            return task, head
    raise UserError("transformers has no class of the encoder's type with such a head; mae-lm bundle writes the model")


def encodes_masks(config: MaskedAutoencoderConfig) -> bool:
    """Return whether the encoder reads ``<mask>`` tokens like all others, as those of ``transformers`` do."""
    return config.mask_join is MaskJoin.embeddings and config.mask_states == 1


def _original_kind(pretrained: Pretrained) -> str | None:
    if pretrained.original is None:
        return None
    path = Path(ORIGINAL, CONFIG)
    with content_errors(path):  # a bundle's file may be damaged
        config = read_config(pretrained.original.files[CONFIG], path)
    kind = config["model_type"]
    for name, value in FAMILIES[kind].values(config).items():
        if name not in TRAINING_OPTIONS and getattr(pretrained.config, name) != value:
            return None
    return kind


def _kind(config: MaskedAutoencoderConfig) -> str:
    if not config.relative_buckets:
        return "roberta-prelayernorm" if config.pre_norm else "roberta"
    bias = (config.relative_buckets, config.relative_max_distance, config.relative_bucketing)
    if bias == (MPNET_BUCKETS, MPNET_DISTANCE, RelativeBucketing.t5) and not config.pre_norm:
        return "mpnet"
    raise UserError(
        "cannot export this position bias: in transformers, only MPNet computes one, post-norm, with "
        f"--relative-buckets {MPNET_BUCKETS}, --relative-max-distance {MPNET_DISTANCE} and --relative-bucketing t5. "
        "Use mae-lm bundle or, for a pretrained model, mae-lm export --with-decoder; or pretrain with "
        "--relative-buckets 0"
    )


def _check_mpnet_padding(pretrained: Pretrained, order: TokenOrder):
    if order[PAD] == MPNET_PAD:
        return
    tokenizer = pretrained.tokenizer
    taken = int(order.ids.argsort()[MPNET_PAD])
    token = tokenizer.token_text(taken)
    [ids] = tokenizer.encode_lines([token])
    if taken in (BOS, EOS, UNK, pretrained.mask) or taken in ids:
        raise UserError(
            f"transformers' MPNet takes id {MPNET_PAD} for padding, which is the token {token!r} in {tokenizer.path}; "
            "mae-lm bundle writes the model with a class of this package"
        )


def written_config(pretrained: Pretrained, to: Counterpart) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    config, order = pretrained.config, to.order
    values = {"architectures": [to.architecture], "dtype": "float32", **labelled(pretrained, to)}
    if not config.wrapped:
        for theirs, ours in to.family.options.items():
            values[theirs] = getattr(config, ours)
    if to.task is SENTENCES and pretrained.about.imported_from is None:
        # Without "regression", pipelines apply a sigmoid. For classes, None replaces what an original may have said.
        values["problem_type"] = "regression" if values.get("num_labels") == 1 else None
    if to.task is MASKED_LM and not config.wrapped:  # an original without a head may say anything
        values["tie_word_embeddings"] = not config.untie_output_weights
    if to.original is not None:
        return _changed(without_code(json.loads(to.original.files[CONFIG])), values)
    if config.wrapped:
        return stock_config(config.wrapped, **values).to_dict()
    values |= {
        "vocab_size": len(pretrained.symbols),
        "hidden_act": "gelu",
        "max_position_embeddings": config.max_positions + order.first_position,
        "initializer_range": config.init_std,
        "pad_token_id": order[PAD],
        "bos_token_id": order[BOS],
        "eos_token_id": order[EOS],
        "tie_word_embeddings": not config.untie_output_weights,
    }
    if to.kind == "mpnet":
        values["relative_attention_num_buckets"] = config.relative_buckets
    else:
        values["type_vocab_size"] = 1
    return import_transformers().AutoConfig.for_model(to.kind, **values).to_dict()


def _changed(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    dropped = ["torch_dtype", "auto_map"]
    labels = config.get("id2label") or ()
    if len(labels) == values.get("num_labels"):
        values.pop("num_labels")
    elif "num_labels" in values:  # its labels were those of another task
        dropped += ["id2label", "label2id"]
    for name in dropped:
        config.pop(name, None)
    return config | values


def labelled(pretrained: Pretrained, to: Counterpart) -> dict[str, Any]:
    """Return the values of ``config.json`` that concern the head of a task."""
    values = {}
    if to.task is ANSWERS:
        values["num_labels"] = 2  # start and end
    if to.task is SENTENCES and "classifier_pooling" in json.loads(pretrained.config.wrapped or "{}"):
        values["classifier_pooling"] = "cls"
    if to.task in (SENTENCES, WORDS):
        names = pretrained.about.labels_of(to.head)
        if names:
            values["id2label"] = dict(enumerate(names))
            values["label2id"] = {name: number for number, name in enumerate(names)}
        else:
            values["num_labels"] = class_count(to.head, pretrained.weights)
    return values


def stock_weights(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the counterpart's ``state_dict()`` in float32, without tied weights."""
    config, family = pretrained.config, to.family
    names = to.task.names(family.naming, config, to.head)
    theirs = to_theirs(_exported(pretrained, to), names)
    weights = {name: weight.detach().float().contiguous() for name, weight in theirs.items()}
    if to.original is not None:
        weights |= _unfolded(weights[family.positions], to) | to.kept
    elif family.segments:
        weights[family.segments] = torch.zeros(1, config.encoder_embed_dim)  # zero has no effect
    if to.task is MASKED_LM and config.untie_output_weights:  # transformers has an unused copy of the bias
        unused = names_of([Part.lm_head], family.naming)[LM_BIAS]
        weights.setdefault(unused, weights[names[LM_BIAS]].clone())
    if to.task is ENCODER:
        return _without_prefix(weights, f"{family.naming}.")
    return weights


def _without_prefix(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items()}


def _exported(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the weights by our names, in the order of the exported tokens."""
    weights = pretrained.weights | _scaled_output(pretrained, to)
    return to.order.exported(weights, pretrained.config)


def _scaled_output(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the float32 output layer of a regression, which gives scores in the range of the training file."""
    scores = pretrained.about.score_range_of(to.head)
    if scores is None:
        return {}
    low, high = scores
    layer = output_layer(to.head, pretrained.weights)
    scaled = {}
    for name in (f"{layer}.weight", f"{layer}.bias"):
        scaled[name] = pretrained.weights[name].float() * (high - low)
    scaled[f"{layer}.bias"] += low
    return scaled


def _unfolded(positions: Tensor, to: Counterpart) -> dict[str, Tensor]:
    """Return position embeddings without the first token type, and the token types.

    If the positions were not trained since the import, they are those of the imported model, bit for bit.
    """
    name, segments_name = to.family.positions, to.family.segments
    original = to.original.weights[name]
    segments = to.original.weights.get(segments_name)
    first = to.order.first_position
    weights = {name: original}
    if not torch.equal(folded(original, segments)[first:], positions[first:]):
        trained = positions if segments is None else positions - segments[0]
        weights[name] = torch.cat([original[:first], trained[first:]])
    if segments is not None:
        weights[segments_name] = segments
    return weights


def write_stock(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write ``config.json`` and ``model.safetensors``."""
    if to.wrapped:
        _write_wrapped(pretrained, to, directory)
    else:
        save_file(stock_weights(pretrained, to), directory / STOCK_WEIGHTS, metadata={"format": "pt"})
    config = json.dumps(written_config(pretrained, to), indent=2)
    write_text(directory / CONFIG, config + "\n")


def _write_wrapped(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write ``model.safetensors`` as the original's class does."""
    stock = stock_class(to.wrapped, to.task.ending)
    config = stock_config(to.wrapped, **labelled(pretrained, to))
    is_encoder = to.task is ENCODER
    base = f"{stock.base_model_prefix}."
    prefixes = {ENCODER_MODEL: "" if is_encoder else base}
    if not is_encoder:
        prefixes[to.task.wrapped_head(to.head)] = ""
    weights = {}
    for name, weight in _exported(pretrained, to).items():
        for ours, theirs in prefixes.items():
            if name.startswith(ours):
                weights[theirs + name.removeprefix(ours)] = weight.detach().float()

    # The pooler of an encoder is among the kept weights, or unset.
    kept = _without_prefix(to.kept, base) if is_encoder else to.kept
    options = {"add_pooling_layer": False} if is_encoder and _may_have_pooler(stock) else {}
    with on_meta_device():
        model = stock._from_config(config, **options)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.save_pretrained(directory)
    if kept:
        path = directory / STOCK_WEIGHTS
        save_file(load_file(path) | kept, path, metadata={"format": "pt"})
