"""The knobs of the network, their checks, and the table of sizes and presets."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class MaskJoin(str, Enum):
    """Where the ``[MASK]`` tokens enter the network."""

    embeddings = "embeddings"
    decoder = "decoder"


class RelativeBiasInit(str, Enum):
    """How the relative position bias starts."""

    normal = "normal"
    neighbours = "neighbours"


def _knob(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class MaskedAutoencoderConfig:
    """Everything that shapes the network except the vocabulary. The defaults are MAE-LM base (arXiv 2302.02060).

    The names are those of the command line (``--encoder-layers``, ...), which is made from this class.

    Raises:
        ValueError: a value is out of range, or two contradict each other; the message names the options.
    """

    mask_join: MaskJoin = _knob(
        MaskJoin.decoder,
        "where [MASK] joins: 'embeddings' (vanilla MLM, as RoBERTa) or 'decoder' (MAE-LM: the encoder never sees it)",
    )
    encoder_layers: int = _knob(12, "layers of the encoder")
    encoder_embed_dim: int = _knob(768, "width of the encoder and the decoder")
    encoder_ffn_embed_dim: int = _knob(3072, "inner width of the feed-forward blocks")
    encoder_attention_heads: int = _knob(12, "attention heads of the encoder and the decoder")
    decoder_layers: int = _knob(4, "layers of the decoder that is thrown away after pretraining; 0 without decoder")
    max_positions: int = _knob(512, "longest sample in tokens, <s> and </s> included")
    relative_buckets: int = _knob(32, "buckets of the encoder's T5 relative position bias; 0 for no such bias")
    relative_max_distance: int = _knob(128, "distance from which on all tokens share the last bucket")
    decoder_relative_buckets: int = _knob(0, "buckets of the decoder's own such bias; 0 for none")
    relative_bias_init: RelativeBiasInit = _knob(
        RelativeBiasInit.normal,
        "start of the relative position bias: 'normal' (the papers') or 'neighbours' (each head leans towards "
        "one neighbouring token, so that small models leave the unigram plateau in minutes)",
    )
    dropout: float = _knob(0.1, "dropout on the encoder's embeddings and on each of its blocks' outputs")
    attention_dropout: float = _knob(0.1, "dropout on the encoder's attention weights")
    decoder_dropout: float = _knob(0.0, "dropout in the decoder, on the attention weights too")
    init_std: float = _knob(0.02, "standard deviation of the initial weights")

    def __post_init__(self):
        for name in (
            "encoder_layers",
            "encoder_embed_dim",
            "encoder_ffn_embed_dim",
            "encoder_attention_heads",
        ):
            self._require(getattr(self, name) > 0, name, "must be at least 1")
        self._require(self.max_positions > 1, "max_positions", "must be at least 2")
        self._require(self.decoder_layers >= 0, "decoder_layers", "must not be negative")
        self._require(self.init_std > 0, "init_std", "must be positive")
        for name in ("dropout", "attention_dropout", "decoder_dropout"):
            self._require(0 <= getattr(self, name) < 1, name, "must be in [0, 1)")
        if self.encoder_embed_dim % self.encoder_attention_heads:
            raise ValueError(
                f"--encoder-embed-dim {self.encoder_embed_dim} is not divisible by "
                f"--encoder-attention-heads {self.encoder_attention_heads}"
            )
        self._check_decoder()
        self._check_relative_bias()

    def _check_decoder(self):
        has_decoder = self.decoder_layers > 0
        if has_decoder != (self.mask_join is MaskJoin.decoder):
            raise ValueError(
                f"--mask-join {self.mask_join.value} contradicts --decoder-layers {self.decoder_layers}: "
                "a decoder (1 layer or more) goes with 'decoder', none (0 layers) with 'embeddings'"
            )
        if self.decoder_relative_buckets and not has_decoder:
            raise ValueError(
                "--decoder-relative-buckets without a decoder (--decoder-layers 0) has no effect; set it to 0"
            )

    def _check_relative_bias(self):
        for name in ("relative_buckets", "decoder_relative_buckets"):
            buckets = getattr(self, name)
            self._require(
                buckets == 0 or (buckets >= 8 and buckets % 4 == 0),
                name,
                "must be 0 or a multiple of 4 from 8 on",
            )
            if buckets and self.relative_max_distance <= buckets // 4:
                raise ValueError(
                    f"--relative-max-distance {self.relative_max_distance} leaves no room for the "
                    f"--{name.replace('_', '-')} {buckets}: it must be above {buckets // 4}"
                )

    def _require(self, holds: bool, name: str, rule: str):
        if not holds:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)} {rule}")


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
"""What each size changes in MAE-LM base. Tiny and small start from weights of std 0.02 * sqrt(768 / width)."""

PRESETS: dict[str, dict[str, Any]] = {
    "mae_lm": {},
    "mae_lm_roberta": {
        "mask_join": MaskJoin.embeddings,
        "decoder_layers": 0,
        "decoder_relative_buckets": 0,
    },
}
"""What each preset changes in MAE-LM of the same size."""


def preset_values(preset: str, size: str) -> dict[str, Any]:
    """The values in which a preset of a size differs from the defaults of :class:`MaskedAutoencoderConfig`."""
    return {**SIZES[size], **PRESETS[preset]}
