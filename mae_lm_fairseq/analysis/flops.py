"""Floating-point operations of the network, by formula: what a batch costs before any kernel runs.

Matrix products alone are counted, a multiplication and an addition as two. For a layer of width d whose
feed-forward block has width 4 d that gives the well-known 24 d^2 + 4 K d per token with K keys (Kaplan et al., 2020,
arXiv 2001.08361, table 1; here with the attention's share written out).
"""

from collections.abc import Iterable
from typing import NamedTuple

from ..core.config import MaskedAutoencoderConfig, MaskJoin

TRAINING = 3
"""A training step in forward passes: the backward pass has two products for each of the forward's."""


class Sample(NamedTuple):
    """How many positions of one sample take part."""

    sequence: int
    """All of its tokens."""
    visible: int
    """Those that are not ``[MASK]``."""
    predicted: int
    """Those with a target."""
    decoded: int | None = None
    """Those that the decoder's last layer computes; the predicted ones where it is None."""


class Flops(NamedTuple):
    """The FLOPs of a forward pass, by part."""

    encoder: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return sum(self)


def layer_flops(dim: int, ffn_dim: int, queries: int, keys: int) -> int:
    """One transformer layer that computes ``queries`` positions and attends to ``keys`` others."""
    projections = 2 * dim * dim * (2 * queries + 2 * keys)  # query and output; key and value
    attention = 2 * 2 * dim * queries * keys  # scores, and the mix of the values
    feed_forward = 2 * 2 * dim * ffn_dim * queries
    return projections + attention + feed_forward


def head_flops(dim: int, vocab_size: int, predicted: int) -> int:
    """The dense layer and the logits of the LM head."""
    return 2 * dim * (dim + vocab_size) * predicted


def forward_flops(config: MaskedAutoencoderConfig, vocab_size: int, samples: Iterable[Sample]) -> Flops:
    """A forward pass over some samples; :data:`TRAINING` times that is a training step."""
    dim, ffn_dim = config.encoder_embed_dim, config.encoder_ffn_embed_dim
    encoder = decoder = head = 0
    for sample in samples:
        seen = sample.sequence if config.mask_join is MaskJoin.embeddings else sample.visible
        encoder += config.encoder_layers * layer_flops(dim, ffn_dim, seen, seen)
        if config.decoder_layers:
            last = sample.predicted if sample.decoded is None else sample.decoded
            decoder += (config.decoder_layers - 1) * layer_flops(dim, ffn_dim, sample.sequence, sample.sequence)
            decoder += layer_flops(dim, ffn_dim, last, sample.sequence)
        head += head_flops(dim, vocab_size, sample.predicted)
    return Flops(encoder, decoder, head)
