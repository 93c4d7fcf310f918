"""What the encoder and the decoder are made of: the transformer layer, and the stack around the layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import MultiheadAttention
from .attention_backends import AttentionBackend, AttentionPattern, attention_pattern
from .config import MaskedAutoencoderConfig
from .dropout import Dropout
from .packing import Layout
from .relative_position import RelativePositionBias


class TransformerLayer(nn.Module):
    """Attention and feed-forward block, each followed by dropout, residual sum and layer norm (post-layer-norm)."""

    def __init__(self, dim: int, ffn_dim: int, heads: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.attention = MultiheadAttention(dim, heads, attention_dropout)
        self.attention_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, pattern: AttentionPattern, queries: Tensor | None = None) -> Tensor:
        """New states of the queries.

        Args:
            states: [number of keys, dim] packed, what is attended to.
            pattern: of queries and keys.
            queries: [number of queries, dim] packed, where not all of ``states`` are to be updated.
        """
        attended = self.dropout(self.attention(states, pattern, queries))
        states = self.attention_layer_norm((states if queries is None else queries) + attended)
        update = self.fc2(F.gelu(self.fc1(states)))
        return self.final_layer_norm(states + self.dropout(update))


class PositionEmbedding(nn.Embedding):
    """Learned absolute positions. Position 0 has row ``pad + 1``, as in fairseq's RoBERTa and its descendants."""

    def __init__(self, max_positions: int, dim: int, pad: int):
        super().__init__(max_positions + pad + 1, dim, padding_idx=pad)

    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions + self.padding_idx + 1)


class TransformerStack(nn.Module):
    """Positions, layer norm, relative position bias and layers; the encoder and the decoders say what goes through.

    Args:
        config: width, heads, feed-forward size and positions.
        layers: number of layers.
        dropout, attention_dropout: of this stack.
        relative_buckets: of this stack's own position bias; 0 for none.
        pad: id of ``<pad>``.

    Attributes:
        checkpoint_activations: keep only what enters each layer for the backward pass, which then computes the layer
            again: less memory, a third more computation.
        attention_backend: how the layers compute attention; not ``auto``.
    """

    checkpoint_activations = False
    attention_backend = AttentionBackend.eager

    def __init__(
        self,
        config: MaskedAutoencoderConfig,
        layers: int,
        dropout: float,
        attention_dropout: float,
        relative_buckets: int,
        pad: int,
    ):
        super().__init__()
        dim, heads = config.encoder_embed_dim, config.encoder_attention_heads
        self.embed_positions = PositionEmbedding(config.max_positions, dim, pad)
        self.embed_layer_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.relative_bias = None
        if relative_buckets:
            self.relative_bias = RelativePositionBias(
                relative_buckets, config.relative_max_distance, heads, config.max_positions
            )
        self.layers = nn.ModuleList(
            TransformerLayer(dim, config.encoder_ffn_embed_dim, heads, dropout, attention_dropout)
            for _ in range(layers)
        )

    def embed(self, states: Tensor, layout: Layout) -> Tensor:
        """[N, dim] -> [N, dim]: what enters the first layer."""
        return self.dropout(self.embed_layer_norm(states + self.embed_positions(layout.positions)))

    def pattern(self, queries: Layout, keys: Layout) -> AttentionPattern:
        """The pattern in which each of ``queries`` attends to all ``keys`` of its row."""
        return attention_pattern(queries, keys, self.relative_bias, self.attention_backend)

    def apply_layer(
        self, layer: TransformerLayer, states: Tensor, pattern: AttentionPattern, queries: Tensor | None = None
    ) -> Tensor:
        """What ``layer`` makes of its arguments."""
        if self.checkpoint_activations and torch.is_grad_enabled():
            return checkpoint(layer, states, pattern, queries, use_reentrant=False)
        return layer(states, pattern, queries)
