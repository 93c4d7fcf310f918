"""The decoders: what turns the encoder's states into states to predict from. Thrown away after pretraining.

A decoder is called with the encoder's packed states, the mask embedding [encoder's dim] and the batch's layout, and
returns the packed states [number predicted, encoder's dim] of the predicted positions. :func:`build_decoder` chooses
one.

In each of them a position starts from its state in the encoder if it is visible, from the mask embedding if not. So a
token that is predicted though visible (the kept and random ones of 80/10/10) starts from what the encoder made of it.
What is predicted does not depend on what else is: the positions that are attended to follow from the text alone.
"""

from torch import Tensor, nn

from mae_lm_fairseq.core.config import DecoderAttention, MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.core.packing import BatchLayout, places
from mae_lm_fairseq.core.transformer import PositionEmbedding, SelfCrossLayer, TransformerLayer, TransformerStack


class NoDecoder(nn.Module):
    """For encoders that have seen ``[MASK]``: its states are read off there."""

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        return states.index_select(0, layout.predicted_in_sequence)


def keep_mask_states(states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
    """The encoder's states as they are."""
    return states


def reset_mask_states(states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
    """The encoder's states [number visible, dim], with the mask embedding for each ``[MASK]`` among them."""
    early = layout.early_in_visible
    return states.index_copy(0, early, mask_embedding.expand(early.numel(), -1))


class Decoder(TransformerStack):
    """What the decoders with layers share: their positions, where they start, projections where the widths differ.

    Args:
        config: the shape of the network.
        embed_positions: the table of positions, as wide as the decoder.
    """

    layer_type: type[TransformerLayer] = TransformerLayer

    def __init__(self, config: MaskedAutoencoderConfig, embed_positions: PositionEmbedding):
        super().__init__(config.decoder, embed_positions, self.layer_type)
        dim, width = config.decoder.dim, config.encoder.dim
        self.project_in = nn.Identity() if dim == width else nn.Linear(width, dim)
        self.project_out = nn.Identity() if dim == width else nn.Linear(dim, width)
        self.mask_states = reset_mask_states if config.reset_mask_states else keep_mask_states

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        states = self.project_in(states)
        mask_embedding = self.project_in(mask_embedding).to(states.dtype)
        states = self.mask_states(states, mask_embedding, layout)
        joined = mask_embedding.expand(layout.sequence.index.numel(), -1)
        joined = joined.index_copy(0, layout.visible_in_sequence, states)
        return self.project_out(self.decode(states, joined, layout))

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        """States [number predicted, dim] of the predicted positions.

        Args:
            states: [number visible, dim], from the encoder.
            joined: [number of tokens, dim], the same with the mask embedding at all other positions.
            layout: of the batch.
        """
        raise NotImplementedError


class SelfAttentionDecoder(Decoder):
    """MAE-LM's and 3ML-self's: all positions go through the layers and attend to all.

    It costs as much as that many layers of the encoder on the whole text, less what its last layer saves: only
    predicted positions leave it, so they alone are its queries.
    """

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        sequence, predicted = layout.sequence, layout.predicted
        joined = self.embed(joined, sequence)
        *layers, last_layer = self.layers
        if layers:
            pattern = self.pattern(sequence, sequence)
            for layer in layers:
                joined = self.apply_layer(layer, joined, pattern)
        queries = joined.index_select(0, layout.predicted_in_sequence)
        return self.apply_layer(last_layer, joined, self.pattern(predicted, sequence), queries)


class CrossAttentionDecoder(Decoder):
    """Each predicted position gathers what it needs from the encoder's output, on its own.

    The encoder's output stays as it is. All but its keys and values is computed at predicted positions only: at 15 %
    masking, a layer costs about a quarter of one on the whole text.
    """

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        predicted = layout.predicted
        queries = self.embed(joined.index_select(0, layout.predicted_in_sequence), predicted)
        pattern = self.pattern(predicted, layout.visible)
        for layer in self.layers:
            queries = self.apply_layer(layer, states, pattern, queries)
        return queries


class SelfCrossAttentionDecoder(Decoder):
    """3ML-cross's: in each layer the masked positions attend to each other, then to the encoder's output.

    The encoder's output stays as it is. A position that is visible and predicted takes part as a query, but is not
    attended to. Beside the cross-attention decoder it costs the second attention, among masked positions.
    """

    layer_type = SelfCrossLayer

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        masked, decoded, predicted, visible = layout.masked, layout.decoded, layout.predicted, layout.visible
        stream = self.embed(joined.index_select(0, places(decoded, layout.sequence)), decoded)
        masked_in_stream = places(masked, decoded)
        *layers, last_layer = self.layers
        if layers:
            pattern, memory_pattern = self.pattern(decoded, masked), self.pattern(decoded, visible)
            for layer in layers:
                keys = stream.index_select(0, masked_in_stream)
                stream = self.apply_layer(layer, keys, pattern, stream, states, memory_pattern)
        keys, queries = stream.index_select(0, masked_in_stream), stream.index_select(0, places(predicted, decoded))
        pattern, memory_pattern = self.pattern(predicted, masked), self.pattern(predicted, visible)
        return self.apply_layer(last_layer, keys, pattern, queries, states, memory_pattern)


_DECODERS = {
    DecoderAttention.self: SelfAttentionDecoder,
    DecoderAttention.cross: CrossAttentionDecoder,
    DecoderAttention.self_cross: SelfCrossAttentionDecoder,
}


def build_decoder(config: MaskedAutoencoderConfig, pad: int, encoder_positions: PositionEmbedding) -> nn.Module:
    """The decoder that a configuration asks for.

    Args:
        config: the shape of the network.
        pad: id of ``<pad>``.
        encoder_positions: the encoder's table of positions, which the decoder may share.
    """
    if config.mask_join is not MaskJoin.decoder:
        return NoDecoder()
    if config.decoder_share_positions:
        positions = encoder_positions
    else:
        positions = PositionEmbedding(config.max_positions, config.decoder.dim, pad)
    return _DECODERS[config.decoder_attention](config, positions)
