"""Analytical FLOP counts of the network.

Only matrix products are counted, with a multiplication and an addition as two operations. For a layer with hidden size
d and feed-forward size 4 d this gives the well-known 24 d^2 + 4 K d per token with K keys (Kaplan et al., 2020, arXiv
2001.08361, table 1; here with the attention term written out).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin, StackConfig

if TYPE_CHECKING:  # needs torch, which a plan does not
    from mae_lm_fairseq.core.packing import BatchLayout

TRAINING = 3
"""Cost of a training step in forward passes: the backward pass has two products for each one of the forward pass."""


class Positions(NamedTuple):
    """Numbers of positions of one sequence."""

    sequence: int
    """All tokens."""
    visible: int
    """Tokens that are not ``[MASK]``, and early masks."""
    predicted: int
    """Positions with a target, which include every ``[MASK]``."""
    decoded: int | None = None
    """Positions that the last layer of a self-attention decoder computes; None for the predicted ones."""

    @property
    def masked(self) -> int:
        """Number of ``[MASK]`` tokens that the encoder does not see."""
        return self.sequence - self.visible


def expanded(config: MaskedAutoencoderConfig, positions: Positions) -> Positions:
    """Return the numbers of states in place of positions, where every predicted one is a ``[MASK]`` that is expanded.

    Expects that ``mask_states`` above 1 come without kept and random tokens.
    """
    added = (config.mask_states - 1) * positions.predicted
    return positions._replace(sequence=positions.sequence + added, predicted=positions.predicted + added)


class Flops(NamedTuple):
    """FLOPs of a forward pass by part."""

    encoder: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return sum(self)


def attention_flops(dim: int, queries: int, keys: int) -> int:
    """Return the FLOPs of attention from ``queries`` positions to ``keys`` positions, projections included."""
    projected = 2 * queries + 2 * keys  # query and output; key and value
    projections = 2 * dim * dim * projected
    scores = 2 * dim * queries * keys
    weighted_sums = scores  # of values, as many operations
    return projections + scores + weighted_sums


def layer_flops(dim: int, ffn_dim: int, queries: int, keys: int) -> int:
    """Return the FLOPs of a transformer layer that computes ``queries`` positions and attends to ``keys`` positions."""
    feed_forward = 2 * 2 * dim * ffn_dim * queries
    return attention_flops(dim, queries, keys) + feed_forward


def head_flops(dim: int, vocab_size: int, predicted: int) -> int:
    """Return the FLOPs of the LM head's dense layer and logits."""
    return 2 * dim * (dim + vocab_size) * predicted


def alignment_flops(config: MaskedAutoencoderConfig, positions: Positions) -> int:
    """Return the FLOPs of the transitions between the states of the ``[MASK]`` tokens: projections and scores."""
    if config.mask_states == 1:
        return 0
    dim = config.encoder.dim
    states = expanded(config, positions).predicted
    projections = 2 * dim * states
    scores = states * states
    return 2 * dim * (projections + scores)


def encoder_flops(config: MaskedAutoencoderConfig, positions: Positions) -> int:
    """Return the FLOPs of the encoder's layers, without and with ``[MASK]`` tokens."""
    stack = config.encoder
    layers_before = config.layers_before_masks
    joined = expanded(config, positions) if config.mask_join is MaskJoin.embeddings else positions
    without_masks = layer_flops(stack.dim, stack.ffn_dim, positions.visible, positions.visible)
    with_masks = layer_flops(stack.dim, stack.ffn_dim, joined.sequence, joined.sequence)
    return layers_before * without_masks + (stack.layers - layers_before) * with_masks


def self_decoder_flops(stack: StackConfig, positions: Positions) -> int:
    """Return the FLOPs of a self-attention decoder, which computes all positions except in the last layer."""
    computed = positions.predicted if positions.decoded is None else positions.decoded
    layer = layer_flops(stack.dim, stack.ffn_dim, positions.sequence, positions.sequence)
    last_layer = layer_flops(stack.dim, stack.ffn_dim, computed, positions.sequence)
    return (stack.layers - 1) * layer + last_layer


def cross_decoder_flops(stack: StackConfig, positions: Positions) -> int:
    """Return the FLOPs of a cross-attention decoder: predicted positions attend to visible tokens."""
    return stack.layers * layer_flops(stack.dim, stack.ffn_dim, positions.predicted, positions.visible)


def self_cross_decoder_flops(stack: StackConfig, positions: Positions) -> int:
    """Return the FLOPs of a decoder whose predicted positions attend to masked ones, then to visible tokens."""
    among_masked = attention_flops(stack.dim, positions.predicted, positions.masked)
    return stack.layers * among_masked + cross_decoder_flops(stack, positions)


_DECODERS = {
    "self": self_decoder_flops,
    "cross": cross_decoder_flops,
    "self_cross": self_cross_decoder_flops,
}


def decoder_flops(config: MaskedAutoencoderConfig, positions: Positions) -> int:
    """Return the FLOPs of the decoder's layers, and of the projections around it if its hidden size differs."""
    stack = config.decoder
    encoder_dim = config.encoder.dim
    if not stack.layers:
        return 0
    positions = expanded(config, positions)
    projected = 0 if stack.dim == encoder_dim else positions.visible + positions.predicted
    formula = _DECODERS.get(config.decoder_attention, self_decoder_flops)
    projections = 2 * encoder_dim * stack.dim * projected
    return formula(stack, positions) + projections


def forward_flops(config: MaskedAutoencoderConfig, vocab_size: int, sequences: Iterable[Positions]) -> Flops:
    """Return the FLOPs of a forward pass over some sequences; a training step costs :data:`TRAINING` times as much."""
    encoder = decoder = head = 0
    for positions in sequences:
        encoder += encoder_flops(config, positions)
        decoder += decoder_flops(config, positions)
        head += head_flops(config.encoder.dim, vocab_size, expanded(config, positions).predicted)
        head += alignment_flops(config, positions)
    return Flops(encoder, decoder, head)


def training_flops(config: MaskedAutoencoderConfig, vocab_size: int, layout: "BatchLayout") -> int:
    """Return the FLOPs of a training step by formula, from the numbers of positions of every sequence in the batch."""
    sequence = layout.sequence.lengths.numpy()
    visible = sequence if layout.visible is None else layout.visible.lengths.numpy()
    predicted = layout.predicted.lengths.numpy()
    # The formula is that of one sequence; with arrays in place of numbers it computes all of them at once.
    batch = Positions(sequence, visible, predicted)
    return TRAINING * int(forward_flops(config, vocab_size, [batch]).total.sum())
