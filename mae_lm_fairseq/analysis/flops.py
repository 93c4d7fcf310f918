"""Floating-point operations of the network, by formula: what a batch costs before any kernel runs.

Matrix products alone are counted, a multiplication and an addition as two. For a layer of width d whose
feed-forward block has width 4 d that gives the well-known 24 d^2 + 4 K d per token with K keys (Kaplan et al., 2020,
arXiv 2001.08361, table 1; here with the attention's share written out).
"""

from collections.abc import Iterable
from typing import NamedTuple

from mae_lm_fairseq.core.config import DecoderAttention, MaskedAutoencoderConfig, StackConfig

TRAINING = 3
"""A training step in forward passes: the backward pass has two products for each of the forward's."""


class Sample(NamedTuple):
    """How many positions of one sample take part."""

    sequence: int
    """All of its tokens."""
    visible: int
    """Those that are not ``[MASK]``, and early masks."""
    predicted: int
    """Those with a target; every ``[MASK]`` is one of them."""
    decoded: int | None = None
    """Those that the last layer of a self-attention decoder computes; the predicted ones where it is None."""
    early: int = 0
    """The ``[MASK]`` that the encoder sees though it would not (--mask-in-encoder)."""

    @property
    def masked(self) -> int:
        """Those that are ``[MASK]``."""
        return self.sequence - self.visible + self.early


class Flops(NamedTuple):
    """The FLOPs of a forward pass, by part."""

    encoder: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return sum(self)


def attention_flops(dim: int, queries: int, keys: int) -> int:
    """Attention of ``queries`` positions to ``keys`` others, projections included."""
    projections = 2 * dim * dim * (2 * queries + 2 * keys)  # query and output; key and value
    return projections + 2 * 2 * dim * queries * keys  # scores, and the mix of the values


def feed_forward_flops(dim: int, ffn_dim: int, positions: int) -> int:
    """The feed-forward block."""
    return 2 * 2 * dim * ffn_dim * positions


def layer_flops(dim: int, ffn_dim: int, queries: int, keys: int) -> int:
    """One transformer layer that computes ``queries`` positions and attends to ``keys`` others."""
    return attention_flops(dim, queries, keys) + feed_forward_flops(dim, ffn_dim, queries)


def head_flops(dim: int, vocab_size: int, predicted: int) -> int:
    """The dense layer and the logits of the LM head."""
    return 2 * dim * (dim + vocab_size) * predicted


def encoder_flops(config: MaskedAutoencoderConfig, sample: Sample) -> int:
    """The layers that do not see ``[MASK]``, and those that do."""
    shape, before = config.encoder, config.layers_before_masks
    seen = [sample.visible] * before + [sample.sequence] * (shape.layers - before)
    return sum(layer_flops(shape.dim, shape.ffn_dim, positions, positions) for positions in seen)


def self_decoder_flops(shape: StackConfig, sample: Sample) -> int:
    """All positions but in the last layer."""
    last = sample.predicted if sample.decoded is None else sample.decoded
    computed = [sample.sequence] * (shape.layers - 1) + [last]
    return sum(layer_flops(shape.dim, shape.ffn_dim, positions, sample.sequence) for positions in computed)


def cross_decoder_flops(shape: StackConfig, sample: Sample) -> int:
    """Predicted positions, which attend to visible ones."""
    return shape.layers * layer_flops(shape.dim, shape.ffn_dim, sample.predicted, sample.visible)


def self_cross_decoder_flops(shape: StackConfig, sample: Sample) -> int:
    """Predicted positions, which attend to masked ones, and then to visible ones."""
    among_masked = attention_flops(shape.dim, sample.predicted, sample.masked)
    return shape.layers * among_masked + cross_decoder_flops(shape, sample)


_DECODERS = {
    DecoderAttention.self: self_decoder_flops,
    DecoderAttention.cross: cross_decoder_flops,
    DecoderAttention.self_cross: self_cross_decoder_flops,
}


def decoder_flops(config: MaskedAutoencoderConfig, sample: Sample) -> int:
    """The decoder's layers, and the projections on both sides where it has a width of its own."""
    shape, width = config.decoder, config.encoder.dim
    if not shape.layers:
        return 0
    projected = 0 if shape.dim == width else sample.visible + sample.predicted
    return _DECODERS[config.decoder_attention](shape, sample) + 2 * width * shape.dim * projected


def forward_flops(config: MaskedAutoencoderConfig, vocab_size: int, samples: Iterable[Sample]) -> Flops:
    """A forward pass over some samples; :data:`TRAINING` times that is a training step."""
    samples = list(samples)
    return Flops(
        encoder=sum(encoder_flops(config, sample) for sample in samples),
        decoder=sum(decoder_flops(config, sample) for sample in samples),
        head=sum(head_flops(config.encoder.dim, vocab_size, sample.predicted) for sample in samples),
    )
