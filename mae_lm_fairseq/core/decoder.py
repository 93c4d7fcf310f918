"""The decoders: what turns the encoder's states into states to predict from. Thrown away after pretraining.

A decoder is called with the encoder's packed states, the mask embedding [dim] and the batch's layout, and
returns the packed states [number predicted, dim] of the predicted positions.
"""

from torch import Tensor, nn

from .attention import attention_pattern
from .config import MaskedAutoencoderConfig
from .dropout import Dropout
from .encoder import PositionEmbedding, relative_bias
from .packing import BatchLayout
from .transformer import TransformerLayer


class NoDecoder(nn.Module):
    """Vanilla MLM: ``[MASK]`` went through the encoder, so its states are read off there."""

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        return states[layout.predicted_in_sequence]


class SelfAttentionDecoder(nn.Module):
    """MAE-LM's decoder: encoder states at visible positions, the mask embedding at all others, a few layers.

    Only predicted positions leave it, so they alone are the queries of its last layer.
    """

    def __init__(self, config: MaskedAutoencoderConfig, pad: int):
        super().__init__()
        dim = config.encoder_embed_dim
        self.max_positions = config.max_positions
        self.embed_positions = PositionEmbedding(config.max_positions, dim, pad)
        self.embed_layer_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.decoder_dropout)
        self.relative_bias = relative_bias(config.decoder_relative_buckets, config)
        self.layers = nn.ModuleList(
            TransformerLayer(
                dim,
                config.encoder_ffn_embed_dim,
                config.encoder_attention_heads,
                config.decoder_dropout,
                config.decoder_dropout,
            )
            for _ in range(config.decoder_layers)
        )

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        sequence, predicted = layout.sequence, layout.predicted
        joined = mask_embedding.to(states.dtype).expand(sequence.index.numel(), -1)
        joined = joined.index_copy(0, layout.visible_in_sequence, states)
        joined = self.dropout(self.embed_layer_norm(joined + self.embed_positions(sequence.positions)))
        *layers, last_layer = self.layers
        pattern = attention_pattern(sequence, sequence, self.relative_bias, self.max_positions)
        for layer in layers:
            joined = layer(joined, joined, pattern)
        pattern = attention_pattern(predicted, sequence, self.relative_bias, self.max_positions)
        return last_layer(joined[layout.predicted_in_sequence], joined, pattern)
