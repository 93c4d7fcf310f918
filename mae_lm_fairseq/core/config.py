"""Network configuration: options, their validation, and the table of sizes and presets."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple

from mae_lm_fairseq.utils.errors import meant
from mae_lm_fairseq.utils.ranges import Range


# Hydra selects a member by name and the command line by value, so names and values must be equal.
class MaskJoin(str, Enum):
    """Where the ``[MASK]`` tokens join the network."""

    embeddings = "embeddings"
    encoder = "encoder"
    decoder = "decoder"


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


MOST_LAYERS = 10_000
"""Layers of a stack at most: those that a damaged file asks for would fill the memory before anything is refused."""
MOST_POSITIONS = 1 << 24
"""Maximum of ``max_positions``, for the same reason."""

DECODER_ATTENTIONS = ["self", "cross", "self_cross"]
"""Names of the decoders; :func:`~mae_lm_fairseq.core.decoder.register_decoder` adds others."""

_DECODER_OPTIONS = (
    "decoder_attention",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
    "decoder_share_positions",
    "decoder_relative_buckets",
    "decoder_dropout",
    "reset_mask_states",
)
"""Options that must have their default when ``decoder_layers`` is 0."""
_NOT_WRAPPED = ("renumber_visible", "decoder_share_positions", "mask_states", "untie_output_weights")
"""Options that must have their default when the encoder is wrapped."""


def _option_field(default: Any, help: str, **limits: float) -> Any:
    """Return a field with the help of its option, and the limits of its values as :class:`Range` takes them."""
    metadata = {"help": help}
    if limits:
        metadata["range"] = Range(**limits)
    return field(default=default, metadata=metadata)


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
    encoder_layers: int = _option_field(12, "number of encoder layers", at_least=1, at_most=MOST_LAYERS)
    encoder_embed_dim: int = _option_field(768, "hidden size of the encoder", at_least=1)
    encoder_ffn_embed_dim: int = _option_field(3072, "feed-forward size of the encoder", at_least=1)
    encoder_attention_heads: int = _option_field(12, "number of attention heads of the encoder", at_least=1)
    decoder_layers: int = _option_field(
        4, "number of decoder layers, dropped after pretraining; 0: no decoder", at_least=0, at_most=MOST_LAYERS
    )
    decoder_attention: str = _option_field(
        "self",
        "attention of the decoder layers: 'self' (all positions to all), 'cross' (masked positions to the encoder's "
        "output) or 'self_cross' (masked positions to each other, then to the encoder's output)",
    )
    decoder_embed_dim: int | None = _option_field(
        None, "hidden size of the decoder (default: the encoder's)", at_least=1
    )
    decoder_ffn_embed_dim: int | None = _option_field(
        None, "feed-forward size of the decoder (default: the encoder's)", at_least=1
    )
    decoder_attention_heads: int | None = _option_field(
        None, "number of attention heads of the decoder (default: the encoder's)", at_least=1
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
        at_least=1,
    )
    renumber_visible: bool = _option_field(
        False,
        "ablation: the encoder numbers the visible tokens 0, 1, 2, ..., so its positions disagree with the decoder's",
    )
    max_positions: int = _option_field(
        512, "maximum length of a sequence in tokens, <s> and </s> included", at_least=3, at_most=MOST_POSITIONS
    )
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
        0.1, "dropout on the embeddings of the encoder and on the output of each of its sublayers", at_least=0, below=1
    )
    attention_dropout: float = _option_field(
        0.1, "dropout on the attention weights of the encoder", at_least=0, below=1
    )
    decoder_dropout: float = _option_field(
        0.0, "dropout in the decoder, including its attention weights", at_least=0, below=1
    )
    init_std: float = _option_field(0.02, "standard deviation of the initial weights", above=0)
    layer_norm_eps: float = _option_field(1e-5, "epsilon of all layer norms (BERT's is 1e-12)", above=0, below=1)
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
        self._check_ranges()
        self._check_mask_join()
        self._check_decoder()
        self._check_heads()
        self._check_relative_bias()
        if self.wrapped is not None:
            self._check_wrapped()

    @property
    def encoder(self) -> StackConfig:
        """Configuration of the encoder."""
        return StackConfig(
            layers=self.encoder_layers,
            dim=self.encoder_embed_dim,
            ffn_dim=self.encoder_ffn_embed_dim,
            heads=self.encoder_attention_heads,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            relative_buckets=self.relative_buckets,
            relative_max_distance=self.relative_max_distance,
            relative_bucketing=self.relative_bucketing,
            layer_norm_eps=self.layer_norm_eps,
            pre_norm=self.pre_norm,
        )

    @property
    def decoder(self) -> StackConfig:
        """Configuration of the decoder; unset values are the encoder's."""
        return self.encoder._replace(
            layers=self.decoder_layers,
            dim=self.decoder_embed_dim or self.encoder_embed_dim,
            ffn_dim=self.decoder_ffn_embed_dim or self.encoder_ffn_embed_dim,
            heads=self.decoder_attention_heads or self.encoder_attention_heads,
            dropout=self.decoder_dropout,
            attention_dropout=self.decoder_dropout,
            relative_buckets=self.decoder_relative_buckets,
        )

    @property
    def layers_before_masks(self) -> int:
        """Number of encoder layers that do not see ``[MASK]``: 0 in the vanilla MLM, all in MAE-LM."""
        if self.mask_join is MaskJoin.embeddings:
            return 0
        if self.mask_join is MaskJoin.decoder:
            return self.encoder_layers
        if self.mask_join_layer is None:
            return self.encoder_layers // 2
        return self.mask_join_layer

    def _check_ranges(self):
        for option in fields(self):
            value = getattr(self, option.name)
            limits = option.metadata.get("range")
            if value is None or limits is None:
                continue
            problem = limits.problem(value)
            self._require(problem is None, option.name, problem)

    def _check_mask_join(self):
        join = self.mask_join.value
        is_inside = self.mask_join is MaskJoin.encoder
        self._require(
            is_inside or self.mask_join_layer is None,
            "mask_join_layer",
            f"contradicts mask_join {join}: it needs mask_join encoder",
        )
        if is_inside and not 0 < self.layers_before_masks < self.encoder_layers:
            raise ValueError(
                f"mask_join_layer {self.layers_before_masks} must be above 0 and below encoder_layers "
                f"{self.encoder_layers}, to leave encoder layers on both sides"
            )
        can_expand = not is_inside and self.decoder_attention == "self"
        self._require(
            can_expand or self.mask_states == 1,
            "mask_states",
            f"contradicts mask_join {join} with decoder_attention {self.decoder_attention}: it needs mask_join decoder "
            "or embeddings, and decoder_attention self",
        )
        self._require(
            not self.renumber_visible or self.mask_join is MaskJoin.decoder,
            "renumber_visible",
            f"contradicts mask_join {join}: it makes the encoder's positions disagree with the decoder's, and needs "
            "mask_join decoder",
        )

    def _check_decoder(self):
        self._require(
            self.decoder_attention in DECODER_ATTENTIONS,
            "decoder_attention",
            not_a_decoder(),
        )
        has_decoder = self.decoder_layers > 0
        if has_decoder != (self.mask_join is MaskJoin.decoder):
            raise ValueError(
                f"mask_join {self.mask_join.value} contradicts decoder_layers {self.decoder_layers}: "
                "'decoder' needs at least 1 decoder layer, 'embeddings' and 'encoder' need decoder_layers 0"
            )
        if not has_decoder:
            for name in self._changed(_DECODER_OPTIONS):
                raise ValueError(f"{name} has no effect without a decoder (decoder_layers 0)")
        if self.decoder_share_positions and self.decoder.dim != self.encoder.dim:
            raise ValueError(
                f"decoder_share_positions contradicts decoder_embed_dim {self.decoder.dim}: the shared "
                f"position table has the size of encoder_embed_dim {self.encoder.dim}"
            )

    def _check_heads(self):
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if stack.dim % stack.heads:
                raise ValueError(
                    f"{name}_embed_dim {stack.dim} is not divisible by {name}_attention_heads {stack.heads}"
                )

    def _check_relative_bias(self):
        is_symmetric = self.relative_bucketing is RelativeBucketing.symmetric
        for name in ("relative_buckets", "decoder_relative_buckets"):
            buckets = getattr(self, name)
            if buckets == 0:
                continue
            is_allowed = buckets >= 8 and buckets % 4 == 0
            self._require(is_allowed, name, "must be 0, or a multiple of 4 and at least 8")
            least = buckets // 4 + is_symmetric
            self._require(
                self.relative_max_distance > least,
                "relative_max_distance",
                f"must be above {least} with {name} {buckets} and relative_bucketing {self.relative_bucketing.value}",
            )
        self._require(
            self.relative_buckets or self.decoder_relative_buckets or not is_symmetric,
            "relative_bucketing",
            "has no effect without a relative position bias (relative_buckets 0)",
        )

    def _check_wrapped(self):
        rule = "is for the layers of this package, and those of an encoder of transformers are its own"
        for name in self._changed(_NOT_WRAPPED):
            self._require(False, name, rule)
        self._require(self.mask_join is not MaskJoin.encoder, "mask_join", rule)

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Return which options do not have their default."""
        return [name for name in names if getattr(self, name) != getattr(type(self), name)]

    def _require(self, holds: bool, name: str, rule: str):
        if not holds:
            value = plain_values(self)[name]
            raise ValueError(f"{name} {value} {rule}")


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
    "mae_lm_3ml_cross": {"decoder_layers": 2, "decoder_attention": "self_cross"},
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


def not_a_decoder() -> str:
    """Return the error message for a name of no decoder, which follows the name."""
    return f"is not one of {', '.join(DECODER_ATTENTIONS)}, nor registered by --user-dir"


def no_preset(name: str) -> str:
    """Return the error message for a name that is no architecture."""
    presets = ", ".join(PRESETS)
    sizes = ", ".join(SIZES)
    return f"no preset {name}{meant(name, ARCHITECTURES)}. Presets: {presets}, each with a size: {sizes}"


def takes_encoder(preset: str) -> bool:
    """Return whether an encoder of ``transformers`` can take the place of a preset's."""
    options = PRESETS[preset]
    return options.keys().isdisjoint(_NOT_WRAPPED) and options.get("mask_join") is not MaskJoin.encoder


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
