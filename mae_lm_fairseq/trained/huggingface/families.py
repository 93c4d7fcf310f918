"""Families of encoders in ``transformers`` that compute what this package's encoder computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import parse_json
from mae_lm_fairseq.utils.hugging_face import configuration_of
from mae_lm_fairseq.wrapped.encoder import kind_of

MPNET_BUCKETS, MPNET_DISTANCE = 32, 128
"""Constants in MPNet's code, which its configuration does not change."""
MPNET_PAD = 1
"""Id of ``<pad>`` in the code of MPNet, which its configuration does not change."""


@dataclass(frozen=True)
class Family:
    """A family of models, by the ``model_type`` of its configuration.

    Attributes:
        naming: column of the table of names, which is also the prefix of the encoder's names.
        classes: prefix of its classes' names.
        options: our options by their names in its configuration.
        constants: our options that its code fixes.
        required: values of its configuration that this package computes, with all that mean the same.
    """

    naming: str
    classes: str
    options: Mapping[str, str]
    constants: Mapping[str, Any]
    required: Mapping[str, tuple]

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of our options for one of its configurations."""
        return {ours: config[theirs] for theirs, ours in self.options.items()} | self.constants

    def first_position(self, pad: int) -> int:
        """Return the row of the first position in the position embeddings."""
        return {"bert": 0, "distilbert": 0, "mpnet": MPNET_PAD + 1}.get(self.naming, pad + 1)

    @property
    def segments(self) -> str | None:
        """Name of the embeddings of token types, if the family has any."""
        return f"{self.naming}.embeddings.token_type_embeddings.weight" if self.naming in _HAVE_SEGMENTS else None

    @property
    def positions(self) -> str:
        """Name of the position embeddings."""
        return f"{self.naming}.embeddings.position_embeddings.weight"

    @property
    def pooler(self) -> str:
        """Prefix of the pooler's names."""
        return f"{self.naming}.pooler."


_OPTIONS = {
    "num_hidden_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "intermediate_size": "encoder_ffn_embed_dim",
    "num_attention_heads": "encoder_attention_heads",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "layer_norm_eps",
}
_DISTILBERT_OPTIONS = {
    "n_layers": "encoder_layers",
    "dim": "encoder_embed_dim",
    "hidden_dim": "encoder_ffn_embed_dim",
    "n_heads": "encoder_attention_heads",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}
_HAVE_SEGMENTS = ("bert", "roberta", "roberta_prelayernorm")
_GELU = ("gelu", "gelu_python")
_REQUIRED = {"hidden_act": _GELU}
_WITHOUT_BIAS = {"relative_buckets": 0, "pre_norm": False}
_PRE_NORM = {"relative_buckets": 0, "pre_norm": True}
_DISTILBERT = _WITHOUT_BIAS | {"layer_norm_eps": 1e-12}
_MPNET = {"relative_buckets": MPNET_BUCKETS, "relative_max_distance": MPNET_DISTANCE, "pre_norm": False}
_MPNET_REQUIRED = {"relative_attention_num_buckets": (MPNET_BUCKETS,), "pad_token_id": (MPNET_PAD,)}

FAMILIES = {
    "bert": Family("bert", "Bert", _OPTIONS, _WITHOUT_BIAS, _REQUIRED),
    "roberta": Family("roberta", "Roberta", _OPTIONS, _WITHOUT_BIAS, _REQUIRED),
    "xlm-roberta": Family("roberta", "XLMRoberta", _OPTIONS, _WITHOUT_BIAS, _REQUIRED),
    "camembert": Family("roberta", "Camembert", _OPTIONS, _WITHOUT_BIAS, _REQUIRED),
    "roberta-prelayernorm": Family("roberta_prelayernorm", "RobertaPreLayerNorm", _OPTIONS, _PRE_NORM, _REQUIRED),
    "mpnet": Family("mpnet", "MPNet", _OPTIONS, _MPNET, _REQUIRED | _MPNET_REQUIRED),
    "distilbert": Family("distilbert", "DistilBert", _DISTILBERT_OPTIONS, _DISTILBERT, {"activation": _GELU}),
}
"""Families by ``model_type``. Encoders of other types are wrapped, see :mod:`mae_lm_fairseq.wrapped`."""


def read_config(content: bytes, path: Path) -> dict[str, Any]:
    """Return a configuration of ``transformers``. Missing values are the defaults of its type.

    Raises:
        UserError: if it is damaged.
        ValueError: if the type cannot be used, or it is not an encoder.
    """
    config = parse_json(content, path, lambda parsed: parsed, "correct or restore it")
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a configuration of transformers, which is a JSON object; restore it")
    if "model_type" not in config:
        raise UserError(f'{path} has no model_type; add it, such as "model_type": "bert"')
    kind_of(config["model_type"])
    if config.get("is_decoder") or config.get("add_cross_attention") or config.get("is_encoder_decoder"):
        raise ValueError("it is configured as a decoder; only encoders can be used")
    positions = config.get("position_embedding_type")
    if positions not in ("absolute", None):
        raise ValueError(f"position_embedding_type is {positions!r}, which transformers no longer computes")
    architectures = config.get("architectures")
    if not isinstance(architectures, list | None):
        raise ValueError(f"architectures is {architectures!r}, and must be a list of names of classes")
    # The default of id2label is made of num_labels.
    decisive = {name: config[name] for name in ("model_type", "num_labels") if name in config}
    configuration_of(config)
    return configuration_of(decisive).to_dict() | config


def folded(positions: Tensor, segments: Tensor | None) -> Tensor:
    """Return position embeddings that include the embedding of the first token type."""
    if segments is None:
        return positions
    return positions + segments[0].reshape(positions.shape[1])
