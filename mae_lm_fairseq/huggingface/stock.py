"""Conversion of a pretrained or fine-tuned encoder to a stock ``transformers`` model.

With T5's relative position bias the encoder is an MPNet (Song et al., 2020) weight for weight, without it a RoBERTa.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin, RelativeBucketing
from mae_lm_fairseq.huggingface.names import (
    CLASSIFICATION_HEAD,
    LM_HEAD,
    SPAN_HEAD,
    TOKEN_CLASSIFICATION_HEAD,
    Part,
    encoder_parts,
    names_of,
    to_theirs,
)
from mae_lm_fairseq.pretrained.reading import Pretrained, label_names
from mae_lm_fairseq.pretrained.token_order import TokenOrder, token_order
from mae_lm_fairseq.pretrained.validation import HEADS, head_names
from mae_lm_fairseq.text.tokenizer import BOS, EOS, UNK
from mae_lm_fairseq.utils.errors import UserError

MPNET_BUCKETS, MPNET_DISTANCE = 32, 128
"""Constants in MPNet's code, which its configuration does not change."""
MPNET_PAD = 1
"""Id of ``<pad>`` in the code of MPNet, which its configuration does not change."""
LAYER_NORM_EPS = 1e-5
"""Epsilon of our layer norms, torch's default."""
SEGMENTS = "roberta.embeddings.token_type_embeddings.weight"
"""Embedding of RoBERTa's only segment type; zero has no effect."""


@dataclass(frozen=True)
class Counterpart:
    """The ``transformers`` equivalent of a network.

    Attributes:
        kind: ``mpnet`` or ``roberta``.
        task: ``Model``, ``ForMaskedLM``, ``ForSequenceClassification``, ``ForTokenClassification`` or
            ``ForQuestionAnswering``.
        head: our name of the head for that task.
    """

    kind: str
    task: str
    head: str = ""

    def order(self, pretrained: Pretrained) -> TokenOrder:
        """Return the order of the exported tokens.

        Raises:
            UserError: if the class takes another token for padding.
        """
        order = token_order(pretrained.tokenizer, len(pretrained.symbols))
        if self.kind != "mpnet":
            return order
        _check_mpnet_padding(pretrained, order)
        return replace(order, first_position=MPNET_PAD + 1)

    @property
    def architecture(self) -> str:
        """Name of the class."""
        return {"mpnet": "MPNet", "roberta": "Roberta"}[self.kind] + self.task

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that both networks share."""
        heads = {
            "ForMaskedLM": LM_HEAD,
            "ForSequenceClassification": CLASSIFICATION_HEAD,
            "ForTokenClassification": TOKEN_CLASSIFICATION_HEAD,
            "ForQuestionAnswering": SPAN_HEAD,
        }
        return encoder_parts(self.kind == "mpnet") + ((heads[self.task],) if self.task in heads else ())


def counterpart(pretrained: Pretrained, head: str | None = None) -> Counterpart:
    """Return the ``transformers`` class that computes the same as the network.

    Args:
        pretrained: the network.
        head: the head to export; required if the model has several.

    Raises:
        UserError: if no class is equivalent; the message gives the reason.
    """
    config, weights = pretrained.config, pretrained.weights
    kind, heads = _kind(config), head_names(weights)
    if head is not None and head not in heads:
        raise UserError(f"--head {head}: no such head; the model has {', '.join(heads) or 'none'}")
    if head is None and len(heads) > 1:
        raise UserError(f"the model has several heads; choose one with --head: {', '.join(heads)}")
    if heads:
        head = head or heads[0]
        if f"{HEADS}{head}.qa_outputs.weight" in weights:
            return Counterpart(kind, "ForQuestionAnswering", head)
        if f"{HEADS}{head}.classifier.weight" in weights:
            return Counterpart(kind, "ForTokenClassification", head)
        inner_dim = len(weights[f"{HEADS}{head}.dense.weight"])
        if inner_dim != config.encoder_embed_dim:
            raise UserError(
                f"the head {head} has the inner size {inner_dim}; transformers only supports the encoder's hidden size "
                f"({config.encoder_embed_dim})"
            )
        return Counterpart(kind, "ForSequenceClassification", head)
    if config.mask_join is MaskJoin.embeddings and "autoencoder.lm_head.dense.weight" in weights:
        return Counterpart(kind, "ForMaskedLM")
    return Counterpart(kind, "Model")


def _kind(config: MaskedAutoencoderConfig) -> str:
    if not config.relative_buckets:
        return "roberta"
    bias = (config.relative_buckets, config.relative_max_distance, config.relative_bucketing)
    if bias == (MPNET_BUCKETS, MPNET_DISTANCE, RelativeBucketing.t5):
        return "mpnet"
    raise UserError(
        f"a relative position bias of --relative-buckets {config.relative_buckets}, --relative-max-distance "
        f"{config.relative_max_distance} and --relative-bucketing {config.relative_bucketing.value} has no counterpart "
        f"in transformers: MPNet has {MPNET_BUCKETS}, {MPNET_DISTANCE} and t5, RoBERTa has none. mae-lm bundle "
        "writes the model with a class of this package"
    )


def _check_mpnet_padding(pretrained: Pretrained, order: TokenOrder):
    if order.pad == MPNET_PAD:
        return
    tokenizer, instead = pretrained.tokenizer, int(order.ids.argsort()[MPNET_PAD])
    token = tokenizer.token_text(instead)
    if instead in (BOS, EOS, UNK, pretrained.mask) or instead in tokenizer.encode_lines([token])[0]:
        raise UserError(
            f"transformers' MPNet takes id {MPNET_PAD} for padding, which is the token {token!r} in {tokenizer.path}; "
            "mae-lm bundle writes the model with a class of this package"
        )


def stock_config(pretrained: Pretrained, to: Counterpart) -> transformers.PreTrainedConfig:
    """Return the configuration of the counterpart."""
    config, order = pretrained.config, to.order(pretrained)
    values = {
        "architectures": [to.architecture],
        "vocab_size": len(pretrained.symbols),
        "hidden_size": config.encoder_embed_dim,
        "num_hidden_layers": config.encoder_layers,
        "num_attention_heads": config.encoder_attention_heads,
        "intermediate_size": config.encoder_ffn_embed_dim,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions + order.first_position,
        "layer_norm_eps": config.layer_norm_eps,
        "initializer_range": config.init_std,
        "pad_token_id": order.pad,
        "bos_token_id": order.bos,
        "eos_token_id": order.eos,
        "dtype": torch.float32,
    }
    if to.task == "ForSequenceClassification":
        values["num_labels"] = len(pretrained.weights[f"{HEADS}{to.head}.out_proj.bias"])
    if to.task == "ForTokenClassification":
        values |= _labels(pretrained, to.head)
    if to.kind == "mpnet":
        return transformers.MPNetConfig(**values, relative_attention_num_buckets=config.relative_buckets)
    return transformers.RobertaConfig(**values, type_vocab_size=1)


def _labels(pretrained: Pretrained, head: str) -> dict[str, Any]:
    """Return the labels of words for a configuration."""
    count = len(pretrained.weights[f"{HEADS}{head}.classifier.bias"])
    names = label_names(pretrained.about, count) or [f"LABEL_{number}" for number in range(count)]
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def stock_weights(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """Return the counterpart's ``state_dict()`` in float32, without tied weights."""
    names = names_of(to.parts, to.kind, pretrained.config.encoder_layers, to.head)
    weights = dict(_in_float32(to_theirs(to.order(pretrained).exported(pretrained.weights), names)))
    if to.kind == "roberta":
        weights[SEGMENTS] = torch.zeros(1, pretrained.config.encoder_embed_dim)
    if to.task == "Model":
        return {name.removeprefix(f"{to.kind}."): weight for name, weight in weights.items()}
    return weights


def _in_float32(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, weight in weights.items():
        yield name, weight.detach().float().contiguous()


def write_stock(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write ``config.json`` and ``model.safetensors``."""
    stock_config(pretrained, to).save_pretrained(directory)
    save_file(stock_weights(pretrained, to), directory / "model.safetensors", metadata={"format": "pt"})
