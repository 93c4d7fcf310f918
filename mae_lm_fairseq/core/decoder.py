"""The decoders: what turns the encoder's states into states to predict from. Thrown away after pretraining.

A decoder decides where ``[MASK]`` joins, so it says which positions the encoder sees (``encoder_layout``). It is
called with the encoder's packed states, the mask embedding [dim] and the batch's layout, and returns the packed
states [number predicted, dim] of the predicted positions. :func:`build_decoder` chooses one.
"""

from torch import Tensor, nn

from .config import MaskedAutoencoderConfig, MaskJoin
from .packing import BatchLayout, Layout
from .transformer import TransformerStack


class NoDecoder(nn.Module):
    """Vanilla MLM: ``[MASK]`` goes through the encoder, and its states are read off there."""

    def encoder_layout(self, layout: BatchLayout) -> Layout:
        """Everything but padding."""
        return layout.sequence

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        return states.index_select(0, layout.predicted_in_sequence)


class SelfAttentionDecoder(TransformerStack):
    """MAE-LM's decoder: encoder states at visible positions, the mask embedding at all others, a few layers.

    Only predicted positions leave it, so they alone are the queries of its last layer.
    """

    def __init__(self, config: MaskedAutoencoderConfig, pad: int):
        dropout = config.decoder_dropout
        super().__init__(config, config.decoder_layers, dropout, dropout, config.decoder_relative_buckets, pad)

    def encoder_layout(self, layout: BatchLayout) -> Layout:
        """Everything but padding and ``[MASK]``, which joins here."""
        return layout.visible

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        sequence, predicted = layout.sequence, layout.predicted
        joined = mask_embedding.to(states.dtype).expand(sequence.index.numel(), -1)
        joined = self.embed(joined.index_copy(0, layout.visible_in_sequence, states), sequence)
        *layers, last_layer = self.layers
        if layers:
            pattern = self.pattern(sequence, sequence)
            for layer in layers:
                joined = self.apply_layer(layer, joined, pattern)
        queries = joined.index_select(0, layout.predicted_in_sequence)
        return self.apply_layer(last_layer, joined, self.pattern(predicted, sequence), queries)


def build_decoder(config: MaskedAutoencoderConfig, pad: int) -> nn.Module:
    """The decoder that a configuration asks for."""
    return SelfAttentionDecoder(config, pad) if config.mask_join is MaskJoin.decoder else NoDecoder()
