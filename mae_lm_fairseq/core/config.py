"""Network configuration: options, their validation, and the table of sizes and presets."""

import difflib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


# Hydra selects a member by name and the command line by value, so names and values must be equal.
class MaskJoin(str, Enum):
    """Where the ``[MASK]`` tokens join the network."""

    embeddings = "embeddings"
    encoder = "encoder"
    decoder = "decoder"


class DecoderAttention(str, Enum):
    """Attention of the decoder layers, see :mod:`~mae_lm_fairseq.core.decoder`."""

    self = "self"
    cross = "cross"
    self_cross = "self_cross"

    @classmethod
    def add(cls, name: str) -> "DecoderAttention":
        """Return a new member, which fairseq and Hydra then accept as a value, or the member of this name."""
        if name not in cls.__members__:
            member = str.__new__(cls, name)
            member._name_ = member._value_ = name
            cls._member_map_[name] = cls._value2member_map_[name] = member
            cls._member_names_.append(name)
        return cls[name]


class RelativeBiasInit(str, Enum):
    """Initialisation of the relative position bias."""

    normal = "normal"
    neighbours = "neighbours"


class RelativeBucketing(str, Enum):
    """How distances are divided into buckets, see :mod:`~mae_lm_fairseq.core.relative_position`."""

    t5 = "t5"
    symmetric = "symmetric"


class StackConfig(NamedTuple):
    """Configuration of one stack of transformer layers."""

    layers: int
    dim: int
    ffn_dim: int
    heads: int
    dropout: float
    attention_dropout: float
    relative_buckets: int
    relative_max_distance: int
    relative_bucketing: RelativeBucketing
    layer_norm_eps: float
    pre_norm: bool


def _option_field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_SIZE_OPTIONS = (
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
)
MOST_LAYERS = 10_000
_MAXIMA = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), MOST_LAYERS),
    **dict.fromkeys((*_SIZE_OPTIONS, "max_positions"), 1 << 24),
    "mask_states": 1_000,
    **dict.fromkeys(("relative_buckets", "relative_max_distance", "decoder_relative_buckets"), 1 << 24),
}
"""Upper bounds, so that a typo fails at once instead of exhausting memory or overflowing a float."""
_DECODER_DEFAULTS = {
    "decoder_attention": DecoderAttention.self,
    "decoder_embed_dim": None,
    "decoder_ffn_embed_dim": None,
    "decoder_attention_heads": None,
    "decoder_share_positions": False,
    "decoder_relative_buckets": 0,
    "decoder_dropout": 0.0,
    "reset_mask_states": False,
}
"""Values that these options must have when ``decoder_layers`` is 0."""


@dataclass(frozen=True)
class MaskedAutoencoderConfig:
    """Configuration of the network, except for the vocabulary. The defaults are MAE-LM base (arXiv 2302.02060).

    The fairseq plug-in generates its command-line options from this class.

    Raises:
        ValueError: if a value is out of range or two values contradict each other; the message names the fields.
    """

    mask_join: MaskJoin = _option_field(
        MaskJoin.decoder,
        "where [MASK] joins: at the 'embeddings' (vanilla MLM, as in RoBERTa), inside the 'encoder' (3ML's analysis) "
        "or in the 'decoder' (MAE-LM and 3ML: the encoder never sees it)",
    )
    mask_join_layer: int | None = _option_field(
        None,
        "number of encoder layers below the one that [MASK] joins before, if it joins inside the encoder (default: "
        "half of the layers)",
    )
    encoder_layers: int = _option_field(12, "number of encoder layers")
    encoder_embed_dim: int = _option_field(768, "hidden size of the encoder")
    encoder_ffn_embed_dim: int = _option_field(3072, "feed-forward size of the encoder")
    encoder_attention_heads: int = _option_field(12, "number of attention heads of the encoder")
    decoder_layers: int = _option_field(4, "number of decoder layers, dropped after pretraining; 0: no decoder")
    decoder_attention: DecoderAttention = _option_field(
        DecoderAttention.self,
        "attention of the decoder layers: 'self' (all positions to all), 'cross' (masked positions to the encoder's "
        "output) or 'self_cross' (masked positions to each other, then to the encoder's output)",
    )
    decoder_embed_dim: int | None = _option_field(None, "hidden size of the decoder (default: the encoder's)")
    decoder_ffn_embed_dim: int | None = _option_field(None, "feed-forward size of the decoder (default: the encoder's)")
    decoder_attention_heads: int | None = _option_field(
        None, "number of attention heads of the decoder (default: the encoder's)"
    )
    decoder_share_positions: bool = _option_field(
        False, "share one table of absolute positions between encoder and decoder"
    )
    reset_mask_states: bool = _option_field(
        False,
        "ablation, where the encoder sees some [MASK] tokens: the decoder receives the mask embedding instead of their "
        "hidden states",
    )
    mask_states: int = _option_field(
        1,
        "number of states that each [MASK] has where it joins (ExLM); above 1, the loss sums over the alignments of "
        "targets to states",
    )
    renumber_visible: bool = _option_field(
        False,
        "ablation: the encoder numbers the visible tokens 0, 1, 2, ..., so its positions disagree with the decoder's",
    )
    max_positions: int = _option_field(512, "maximum length of a sequence in tokens, <s> and </s> included")
    relative_buckets: int = _option_field(32, "buckets of the T5 relative position bias of the encoder; 0: no bias")
    relative_max_distance: int = _option_field(
        128, "distance at which the logarithmic buckets end; larger distances share the last bucket"
    )
    relative_bucketing: RelativeBucketing = _option_field(
        RelativeBucketing.t5,
        "how distances are divided into buckets: 't5' (as in T5 and MPNet) or 'symmetric' (as in the code of MAE-LM's "
        "authors)",
    )
    decoder_relative_buckets: int = _option_field(
        0, "buckets of the T5 bias of the decoder; 0: no bias, or a decoder of layers of the --wrapped encoder's type"
    )
    relative_bias_init: RelativeBiasInit = _option_field(
        RelativeBiasInit.normal,
        "initialisation of the relative position bias: 'normal' (as in the papers) or 'neighbours' (each head prefers "
        "one neighbouring token, so that small models leave the unigram plateau in minutes)",
    )
    dropout: float = _option_field(
        0.1, "dropout on the embeddings of the encoder and on the output of each of its sublayers"
    )
    attention_dropout: float = _option_field(0.1, "dropout on the attention weights of the encoder")
    decoder_dropout: float = _option_field(0.0, "dropout in the decoder, including its attention weights")
    init_std: float = _option_field(0.02, "standard deviation of the initial weights")
    layer_norm_eps: float = _option_field(1e-5, "epsilon of all layer norms (BERT's is 1e-12)")
    pre_norm: bool = _option_field(
        False,
        "encoder and decoder: layer norm at the input of each sublayer, and of the last layer's output, in place of "
        "layer norm after each sublayer",
    )
    untie_output_weights: bool = _option_field(
        False, "the language model head has output weights of its own instead of the token embeddings"
    )
    wrapped: str | None = _option_field(
        None, "configuration, as JSON, of an encoder of transformers that is used as it is; mae-lm import prints it"
    )

    def __post_init__(self):
        for name in ("encoder_layers", "mask_states", *_SIZE_OPTIONS):
            self._require(getattr(self, name) is None or getattr(self, name) > 0, name, "must be at least 1")
        for name, maximum in _MAXIMA.items():
            self._require((getattr(self, name) or 0) <= maximum, name, f"must be at most {maximum:,}")
        self._require(self.max_positions > 2, "max_positions", "must be at least 3")
        self._require(self.decoder_layers >= 0, "decoder_layers", "must not be negative")
        self._require(self.init_std > 0, "init_std", "must be positive")
        self._require(0 < self.layer_norm_eps < 1, "layer_norm_eps", "must be above 0 and below 1")
        for name in ("dropout", "attention_dropout", "decoder_dropout"):
            self._require(0 <= getattr(self, name) < 1, name, "must be in [0, 1)")
        self._check_mask_join()
        self._check_decoder()
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if stack.dim % stack.heads:
                raise ValueError(
                    f"{name}_embed_dim {stack.dim} is not divisible by {name}_attention_heads {stack.heads}"
                )
        self._check_relative_bias()
        if self.wrapped is not None:
            for name in ("renumber_visible", "decoder_share_positions", "mask_states", "untie_output_weights"):
                self._require(getattr(self, name) == getattr(type(self), name), name, "contradicts wrapped")
            self._require(self.mask_join is not MaskJoin.encoder, "mask_join", "contradicts wrapped")

    @property
    def encoder(self) -> StackConfig:
        """Configuration of the encoder."""
        sizes = self.encoder_layers, self.encoder_embed_dim, self.encoder_ffn_embed_dim, self.encoder_attention_heads
        return self._stack(*sizes, self.dropout, self.attention_dropout, self.relative_buckets)

    @property
    def decoder(self) -> StackConfig:
        """Configuration of the decoder; unset values are the encoder's."""
        sizes = (
            self.decoder_embed_dim or self.encoder_embed_dim,
            self.decoder_ffn_embed_dim or self.encoder_ffn_embed_dim,
            self.decoder_attention_heads or self.encoder_attention_heads,
        )
        dropout = self.decoder_dropout
        return self._stack(self.decoder_layers, *sizes, dropout, dropout, self.decoder_relative_buckets)

    def _stack(self, *own: Any) -> StackConfig:
        of_both = self.relative_max_distance, self.relative_bucketing, self.layer_norm_eps, self.pre_norm
        return StackConfig(*own, *of_both)

    @property
    def layers_before_masks(self) -> int:
        """Number of encoder layers that do not see ``[MASK]``: 0 in the vanilla MLM, all in MAE-LM."""
        if self.mask_join is MaskJoin.encoder:
            return self.encoder_layers // 2 if self.mask_join_layer is None else self.mask_join_layer
        return self.encoder_layers if self.mask_join is MaskJoin.decoder else 0

    def _check_mask_join(self):
        inside, join = self.mask_join is MaskJoin.encoder, self.mask_join.value
        needs_inside = f"contradicts mask_join {join}: it needs mask_join encoder"
        self._require(self.mask_join_layer is None or inside, "mask_join_layer", needs_inside)
        if inside and not 0 < self.layers_before_masks < self.encoder_layers:
            raise ValueError(
                f"mask_join_layer {self.layers_before_masks} must be above 0 and below encoder_layers "
                f"{self.encoder_layers}, to leave encoder layers on both sides"
            )
        self._require(
            self.mask_states == 1 or not (inside or self.decoder_attention is not DecoderAttention.self),
            "mask_states",
            f"contradicts mask_join {join} with decoder_attention {self.decoder_attention.value}: it needs mask_join "
            "decoder or embeddings, and decoder_attention self",
        )
        self._require(
            not self.renumber_visible or self.mask_join is MaskJoin.decoder,
            "renumber_visible",
            f"contradicts mask_join {join}: it makes the encoder's positions disagree with the decoder's, and needs "
            "mask_join decoder",
        )

    def _check_decoder(self):
        has_decoder = self.decoder_layers > 0
        if has_decoder != (self.mask_join is MaskJoin.decoder):
            raise ValueError(
                f"mask_join {self.mask_join.value} contradicts decoder_layers {self.decoder_layers}: "
                "'decoder' needs at least 1 decoder layer, 'embeddings' and 'encoder' need decoder_layers 0"
            )
        for name, default in _DECODER_DEFAULTS.items():
            if getattr(self, name) != default and not has_decoder:
                raise ValueError(f"{name} has no effect without a decoder (decoder_layers 0)")
        if self.decoder_share_positions and self.decoder.dim != self.encoder.dim:
            raise ValueError(
                f"decoder_share_positions contradicts decoder_embed_dim {self.decoder.dim}: the shared "
                f"position table has the size of encoder_embed_dim {self.encoder.dim}"
            )

    def _check_relative_bias(self):
        distance, is_symmetric = self.relative_max_distance, self.relative_bucketing is RelativeBucketing.symmetric
        for name in ("relative_buckets", "decoder_relative_buckets"):
            buckets = getattr(self, name)
            is_allowed = buckets == 0 or (buckets >= 8 and buckets % 4 == 0)
            self._require(is_allowed, name, "must be 0, or a multiple of 4 and at least 8")
            least = buckets // 4 + is_symmetric
            rule = f"must be above {least} with {name} {buckets} and relative_bucketing {self.relative_bucketing.value}"
            self._require(not buckets or distance > least, "relative_max_distance", rule)
        has_bias = self.relative_buckets or self.decoder_relative_buckets
        rule = "has no effect without a relative position bias (relative_buckets 0)"
        self._require(has_bias or not is_symmetric, "relative_bucketing", rule)

    def _require(self, holds: bool, name: str, rule: str):
        if not holds:
            raise ValueError(f"{name} {getattr(self, name)} {rule}")


_SMALL_SCALE = {"decoder_relative_buckets": 32, "relative_bias_init": RelativeBiasInit.neighbours}

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "encoder_layers": 4,
        "encoder_embed_dim": 128,
        "encoder_ffn_embed_dim": 512,
        "encoder_attention_heads": 4,
        "decoder_layers": 2,
        "init_std": 0.049,
        **_SMALL_SCALE,
    },
    "small": {
        "encoder_layers": 4,
        "encoder_embed_dim": 256,
        "encoder_ffn_embed_dim": 1024,
        "encoder_attention_heads": 4,
        "decoder_layers": 4,
        "init_std": 0.035,
        **_SMALL_SCALE,
    },
    "base": {},
    "large": {
        "encoder_layers": 24,
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
    },
}
"""Options of each size that differ from MAE-LM base. Initial weights of tiny and small have a standard deviation of
0.02 * sqrt(768 / hidden size)."""

_NO_DECODER = {"decoder_layers": 0, "decoder_relative_buckets": 0}

PRESETS: dict[str, dict[str, Any]] = {
    "mae_lm": {},
    "mae_lm_roberta": {"mask_join": MaskJoin.embeddings, **_NO_DECODER},
    "mae_lm_3ml_self": {"decoder_layers": 2},
    "mae_lm_3ml_cross": {"decoder_layers": 2, "decoder_attention": DecoderAttention.self_cross},
    "mae_lm_mask_later": {"mask_join": MaskJoin.encoder, **_NO_DECODER},
    "mae_lm_exlm": {"mask_join": MaskJoin.embeddings, "mask_states": 4, **_NO_DECODER},
    "mae_lm_exlm_decoder": {"mask_states": 4},
}
"""Options of each preset that differ from MAE-LM of the same size. The presets are MAE-LM (Meng et al., ICLR 2024,
arXiv 2302.02060), vanilla MLM, the two systems and the analysis of 3ML (Liao et al., Findings of EMNLP 2022,
arXiv 2211.04898), ExLM (Zheng et al., ICML 2025, arXiv 2501.13397) and MAE-LM whose decoder is that of ExLM."""

ARCHITECTURES = {f"{preset}_{size}": (preset, size) for preset in PRESETS for size in SIZES} | {
    "mae_lm": ("mae_lm", "base")
}
"""Preset and size of each architecture."""


def no_preset(name: str) -> str:
    """Return the error message for a name that is no architecture."""
    near = difflib.get_close_matches(name, ARCHITECTURES, 1, cutoff=0.8)
    question = f" Is {near[0]} meant?" if near else ""
    presets = ", ".join(PRESETS)
    return f"no preset {name}.{question} Presets: {presets}, each with a size: {', '.join(SIZES)}"


def preset_config(preset: str, size: str, **changes) -> MaskedAutoencoderConfig:
    """Return the configuration of a preset and size, with changes.

    Raises:
        ValueError: if the changes contradict the preset or each other.
    """
    return MaskedAutoencoderConfig(**{**SIZES[size], **PRESETS[preset], **changes})


TRAINING_OPTIONS = {"dropout", "attention_dropout", "decoder_dropout", "init_std", "relative_bias_init"}
"""Options of the network that do not change what its weights compute."""


def plain_values(config: MaskedAutoencoderConfig) -> dict[str, Any]:
    """Return all options with values that JSON can hold."""
    return {name: getattr(value, "value", value) for name, value in vars(config).items()}
