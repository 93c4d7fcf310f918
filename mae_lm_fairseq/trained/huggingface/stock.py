"""Conversion of a pretrained or fine-tuned encoder to a stock ``transformers`` model.

With T5's relative position bias the encoder is an MPNet (Song et al., 2020) weight for weight, without it a RoBERTa or,
in pre-norm, a RobertaPreLayerNorm. An imported model becomes one of the family that it came from again, with its other
weights and its own tokenizer.
"""

import inspect
import json
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
from mae_lm_fairseq.trained.validation import HEADS, head_names, output_layer, token_weights
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.hugging_face import import_transformers, without_code
from mae_lm_fairseq.wrapped.network import ENCODER_MODEL, LM_HEAD, stock_class, stock_config


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

    def names(self, config: MaskedAutoencoderConfig) -> dict[str, str]:
        """Return the names of the weights that both networks share, by ours."""
        parts = [Part.encoder, *([self.task.part] if self.task.part else [])]
        if self.task is MASKED_LM and config.untie_output_weights:
            parts.append(Part.output_weights)
        return names_of(parts, self.family.naming, config.encoder_layers, self.head)

    @property
    def kept(self) -> dict[str, Tensor]:
        """Further weights of the imported model: the pooler of a model without a task, and what was trained with it."""
        if self.original is None or self.head:
            return {}
        elsewhere = () if self.wrapped else (self.family.positions, self.family.segments)
        return {
            name: weight
            for name, weight in self.original.weights.items()
            if ("pooler." in name if self.task is ENCODER else name not in elsewhere)
        }

    @property
    def has_unset_pooler(self) -> bool:
        """Whether the encoder's class, ``...Model``, has a pooler for which there are no weights."""
        encoder = getattr(import_transformers(), f"{self.classes}{ENCODER.ending}")
        return not self.head and _may_have_pooler(encoder) and not any("pooler." in name for name in self.kept)


def _may_have_pooler(encoder: type) -> bool:
    return "add_pooling_layer" in inspect.signature(encoder).parameters


def counterpart(pretrained: Pretrained) -> Counterpart:
    """Return the ``transformers`` class that computes the same as the network.

    Raises:
        UserError: if no class is equivalent; the message gives the reason.
    """
    task, head = _task(pretrained)
    order = token_order(pretrained.tokenizer, len(pretrained.symbols))
    if pretrained.config.wrapped:
        return Counterpart("", task, order, head, pretrained.original, pretrained.config.wrapped)
    kind, original = _original_kind(pretrained), pretrained.original
    if kind is None or (kind == "distilbert" and task is SENTENCES):  # whose head has ReLU
        kind, original = _kind(pretrained.config), None
    if kind == "mpnet":
        _check_mpnet_padding(pretrained, order)
    order = replace(order, first_position=FAMILIES[kind].first_position(order[PAD]))
    return Counterpart(kind, task, order, head, original)


def _task(pretrained: Pretrained) -> tuple[TaskClass, str]:
    config, weights, heads = pretrained.config, pretrained.weights, head_names(pretrained.weights)
    if len(heads) > 1:
        raise UserError(f"the model has several heads ({', '.join(heads)}), and classes of transformers have one")
    if not heads:
        fills_masks = config.mask_join is MaskJoin.embeddings and config.mask_states == 1 and predicts(pretrained)
        return MASKED_LM if fills_masks else ENCODER, ""
    [head] = heads
    module = output_layer(head, weights).removeprefix(f"{HEADS}{head}.").partition(".")[0]
    for task in FINETUNED:
        if module == (task.ending if config.wrapped else task.module):
            return task, head
    raise UserError("transformers has no class of the encoder's type with such a head; mae-lm bundle writes the model")


def _original_kind(pretrained: Pretrained) -> str | None:
    if pretrained.original is None:
        return None
    path = Path(ORIGINAL, CONFIG)
    with content_errors(path):  # a bundle's file may be damaged
        config = read_config(pretrained.original.files[CONFIG], path)
    family = FAMILIES[config["model_type"]]
    options = {ours: theirs for theirs, ours in family.options.items() if ours not in TRAINING_OPTIONS}
    values = {ours: config[theirs] for ours, theirs in options.items()} | family.constants
    is_same = all(getattr(pretrained.config, name) == value for name, value in values.items())
    return config["model_type"] if is_same else None


def _kind(config: MaskedAutoencoderConfig) -> str:
    if not config.relative_buckets:
        return "roberta-prelayernorm" if config.pre_norm else "roberta"
    bias = (config.relative_buckets, config.relative_max_distance, config.relative_bucketing)
    if bias == (MPNET_BUCKETS, MPNET_DISTANCE, RelativeBucketing.t5) and not config.pre_norm:
        return "mpnet"
    raise UserError(
        "cannot export this position bias: in transformers, only MPNet computes one, post-norm, with "
        f"--relative-buckets {MPNET_BUCKETS}, --relative-max-distance {MPNET_DISTANCE} and --relative-bucketing t5. "
        "Use mae-lm bundle, or pretrain with --relative-buckets 0"
    )


def _check_mpnet_padding(pretrained: Pretrained, order: TokenOrder):
    if order[PAD] == MPNET_PAD:
        return
    tokenizer, instead = pretrained.tokenizer, int(order.ids.argsort()[MPNET_PAD])
    token = tokenizer.token_text(instead)
    if instead in (BOS, EOS, UNK, pretrained.mask) or instead in tokenizer.encode_lines([token])[0]:
        raise UserError(
            f"transformers' MPNet takes id {MPNET_PAD} for padding, which is the token {token!r} in {tokenizer.path}; "
            "mae-lm bundle writes the model with a class of this package"
        )


def written_config(pretrained: Pretrained, to: Counterpart) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    config, order = pretrained.config, to.order
    values = {"architectures": [to.architecture], "dtype": "float32", **labelled(pretrained, to)}
    if not config.wrapped:
        values |= {theirs: getattr(config, ours) for theirs, ours in to.family.options.items()}
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
    own = {"relative_attention_num_buckets": config.relative_buckets} if to.kind == "mpnet" else {"type_vocab_size": 1}
    return import_transformers().AutoConfig.for_model(to.kind, **values, **own).to_dict()


def _changed(config: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    dropped = ["torch_dtype", "auto_map"]
    if len(config.get("id2label") or ()) == values.get("num_labels"):
        values.pop("num_labels")
    elif "num_labels" in values:  # its labels were those of another task
        dropped += ["id2label", "label2id"]
    return {name: value for name, value in config.items() if name not in dropped} | values


def labelled(pretrained: Pretrained, to: Counterpart) -> dict[str, Any]:
    """Return the values of ``config.json`` that concern the head of a task."""
    values: dict[str, Any] = {"num_labels": 2} if to.task is ANSWERS else {}  # start and end
    if to.task is SENTENCES and "classifier_pooling" in json.loads(pretrained.config.wrapped or "{}"):
        values["classifier_pooling"] = "cls"
    if to.task not in (SENTENCES, WORDS):
        return values
    if names := pretrained.about.labels_of(to.head):
        values["id2label"] = dict(enumerate(names))
        return values | {"label2id": {name: number for number, name in enumerate(names)}}
    return values | {"num_labels": len(pretrained.weights[f"{output_layer(to.head, pretrained.weights)}.weight"])}


def stock_weights(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the counterpart's ``state_dict()`` in float32, without tied weights."""
    config = pretrained.config
    names = to.names(config)
    ours = pretrained.weights | _scaled_output(pretrained, to)
    theirs = to_theirs(to.order.exported(ours), names)
    weights = {name: weight.detach().float().contiguous() for name, weight in theirs.items()}
    if to.original is not None:
        weights |= _unfolded(weights[to.family.positions], to) | to.kept
    elif to.family.segments:
        weights[to.family.segments] = torch.zeros(1, config.encoder_embed_dim)  # zero has no effect
    if to.task is MASKED_LM and config.untie_output_weights:  # transformers has an unused copy of the bias
        unused = names_of([Part.lm_head], to.family.naming)[LM_BIAS]
        weights.setdefault(unused, weights[names[LM_BIAS]].clone())
    if to.task is ENCODER:
        return {name.removeprefix(f"{to.family.naming}."): weight for name, weight in weights.items()}
    return weights


def _scaled_output(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the float32 output layer of a regression, which gives scores in the range of the training file."""
    scores = pretrained.about.score_range_of(to.head)
    if scores is None:
        return {}
    low, high = scores
    weight, bias = (f"{output_layer(to.head, pretrained.weights)}.{part}" for part in ("weight", "bias"))
    scaled = {name: pretrained.weights[name].float() * (high - low) for name in (weight, bias)}
    return {**scaled, bias: scaled[bias] + low}


def _unfolded(positions: Tensor, to: Counterpart) -> dict[str, Tensor]:
    """Return position embeddings without the first token type, and the token types.

    If the positions were not trained since the import, they are those of the imported model, bit for bit.
    """
    kept, (name, segments) = to.original.weights, (to.family.positions, to.family.segments)
    types = {segments: kept[segments]} if segments in kept else {}
    before, first = kept[name], to.order.first_position
    if not torch.equal(folded(before, types.get(segments))[first:], positions[first:]):
        trained = positions - kept[segments][0] if types else positions
        before = torch.cat([before[:first], trained[first:]])
    return {name: before, **types}


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
    stock, config = stock_class(to.wrapped, to.task.ending), stock_config(to.wrapped, **labelled(pretrained, to))
    base, head = f"{stock.base_model_prefix}.", f"{HEADS}{to.head}.{to.task.ending}." if to.head else LM_HEAD
    weights = to.order.exported(pretrained.weights | _scaled_output(pretrained, to), token_weights(pretrained.config))
    named = {
        base + name.removeprefix(ENCODER_MODEL): x for name, x in weights.items() if name.startswith(ENCODER_MODEL)
    }
    options, kept = {}, to.kept
    if to.task is ENCODER:  # its pooler is among the kept weights, or unset
        named, kept = ({name.removeprefix(base): x for name, x in part.items()} for part in (named, kept))
        options = {"add_pooling_layer": False} if _may_have_pooler(stock) else {}
    else:
        named |= {name.removeprefix(head): weight for name, weight in weights.items() if name.startswith(head)}
    with torch.device("meta"):
        model = stock._from_config(config, **options)
    model.load_state_dict({name: weight.detach().float() for name, weight in named.items()}, assign=True)
    model.tie_weights()
    model.save_pretrained(directory)
    if kept:
        path = directory / STOCK_WEIGHTS
        save_file({**load_file(path), **kept}, path, metadata={"format": "pt"})
