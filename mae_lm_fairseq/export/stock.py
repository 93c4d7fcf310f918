"""A pretrained or fine-tuned encoder as a model of ``transformers`` that needs no code of ours.

With T5's relative position bias it is an MPNet (Song et al., 2020) weight for weight, without one a RoBERTa.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from ..core.config import MaskedAutoencoderConfig, MaskJoin
from ..errors import UserError
from .names import (
    CLASSIFICATION_HEAD,
    LM_HEAD,
    QUESTION_ANSWERING_HEAD,
    Part,
    encoder_parts,
    names_of,
    to_theirs,
)
from .pretrained import Pretrained

MPNET_BUCKETS, MPNET_DISTANCE = 32, 128
"""Fixed in MPNet's code, whatever its configuration says."""
LAYER_NORM_EPS = 1e-5
"""Torch's default, which our layer norms have."""
SEGMENTS = "roberta.embeddings.token_type_embeddings.weight"
"""RoBERTa's one kind of segment; it adds nothing where it is zero."""
HEADS = "classification_heads."
SPAN_HEAD = QUESTION_ANSWERING_HEAD.prefix.ours.removesuffix(".")


@dataclass(frozen=True)
class Counterpart:
    """What a network is in ``transformers``.

    Attributes:
        kind: ``mpnet`` or ``roberta``.
        task: ``Model``, ``ForMaskedLM``, ``ForSequenceClassification`` or ``ForQuestionAnswering``.
        head: our name of the classification head.
    """

    kind: str
    task: str
    head: str = ""

    @property
    def architecture(self) -> str:
        """Name of the class."""
        return {"mpnet": "MPNet", "roberta": "Roberta"}[self.kind] + self.task

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the two have in common."""
        heads = {
            "ForMaskedLM": LM_HEAD,
            "ForSequenceClassification": CLASSIFICATION_HEAD,
            "ForQuestionAnswering": QUESTION_ANSWERING_HEAD,
        }
        return encoder_parts(self.kind == "mpnet") + ((heads[self.task],) if self.task in heads else ())


def counterpart(pretrained: Pretrained, head: str | None = None) -> Counterpart:
    """The class of ``transformers`` that computes the same.

    Args:
        pretrained: the network.
        head: the classification head to export; needed where there are several.

    Raises:
        UserError: there is no such class; the message says why.
    """
    config = pretrained.config
    kind = _kind(config)
    heads = classification_heads(pretrained.weights)
    if head is not None and head not in heads:
        raise UserError(f"--head {head}: there is no such classification head, but {', '.join(heads) or 'none at all'}")
    if head is None and len(heads) > 1:
        raise UserError(f"there are several classification heads; choose with --head: {', '.join(heads)}")
    if heads:
        head = head or heads[0]
        inner = pretrained.weights[f"{HEADS}{head}.dense.weight"].shape[0]
        if inner != config.encoder_embed_dim:
            raise UserError(
                f"the classification head {head} is {inner} wide inside; those of transformers are as wide as the "
                f"encoder ({config.encoder_embed_dim})"
            )
        return Counterpart(kind, "ForSequenceClassification", head)
    if any(name.startswith(f"{SPAN_HEAD}.") for name in pretrained.weights):
        return Counterpart(kind, "ForQuestionAnswering")
    has_lm_head = "autoencoder.lm_head.dense.weight" in pretrained.weights
    if config.mask_join is MaskJoin.embeddings and has_lm_head:
        return Counterpart(kind, "ForMaskedLM")
    return Counterpart(kind, "Model")


def _kind(config: MaskedAutoencoderConfig) -> str:
    if not config.relative_buckets:
        return "roberta"
    if (config.relative_buckets, config.relative_max_distance) == (MPNET_BUCKETS, MPNET_DISTANCE):
        return "mpnet"
    raise UserError(
        f"a relative position bias of --relative-buckets {config.relative_buckets} and --relative-max-distance "
        f"{config.relative_max_distance} has no counterpart in transformers: MPNet has {MPNET_BUCKETS} and "
        f"{MPNET_DISTANCE}, RoBERTa has none. --autoencoder exports the model with a class of this package"
    )


def classification_heads(weights: dict[str, Tensor]) -> list[str]:
    """Names of the classification heads."""
    return sorted({name.split(".")[1] for name in weights if name.startswith(HEADS)})


def stock_config(pretrained: Pretrained, to: Counterpart) -> transformers.PreTrainedConfig:
    """The configuration of the counterpart."""
    config = pretrained.config
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
        # Positions count from the id of <pad> + 1.
        "max_position_embeddings": config.max_positions + pretrained.pad + 1,
        "layer_norm_eps": LAYER_NORM_EPS,
        "initializer_range": config.init_std,
        "pad_token_id": pretrained.pad,
        "bos_token_id": pretrained.symbols.index("<s>"),
        "eos_token_id": pretrained.symbols.index("</s>"),
        "dtype": torch.float32,
    }
    if to.task == "ForSequenceClassification":
        values["num_labels"] = len(pretrained.weights[f"{HEADS}{to.head}.out_proj.bias"])
    if to.kind == "mpnet":
        return transformers.MPNetConfig(**values, relative_attention_num_buckets=config.relative_buckets)
    return transformers.RobertaConfig(**values, type_vocab_size=1)


def stock_weights(pretrained: Pretrained, to: Counterpart) -> dict[str, Tensor]:
    """The weights of the counterpart in float32, as its ``state_dict()`` has them but for those that are tied."""
    names = names_of(to.parts, to.kind, pretrained.config.encoder_layers, to.head)
    weights = dict(_in_float32(to_theirs(pretrained.weights, names)))
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
