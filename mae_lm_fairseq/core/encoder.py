"""The encoder: the part that stays after pretraining. In MAE-LM it never sees ``[MASK]``."""

from torch import Tensor, nn

from .attention import attention_pattern
from .config import MaskedAutoencoderConfig
from .dropout import Dropout
from .packing import Layout
from .relative_position import RelativePositionBias
from .transformer import TransformerLayer


class PositionEmbedding(nn.Embedding):
    """Learned absolute positions. Position 0 has row ``pad + 1``, as in fairseq's RoBERTa and its descendants."""

    def __init__(self, max_positions: int, dim: int, pad: int):
        super().__init__(max_positions + pad + 1, dim, padding_idx=pad)

    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions + self.padding_idx + 1)


def relative_bias(buckets: int, config: MaskedAutoencoderConfig) -> RelativePositionBias | None:
    """The position bias of a stack, or None where ``buckets`` is 0."""
    if not buckets:
        return None
    return RelativePositionBias(buckets, config.relative_max_distance, config.encoder_attention_heads)


class Encoder(nn.Module):
    """Token and position embeddings and a stack of transformer layers, over packed tokens."""

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__()
        dim = config.encoder_embed_dim
        self.max_positions = config.max_positions
        self.embed_tokens = nn.Embedding(vocab_size, dim, padding_idx=pad)
        self.embed_positions = PositionEmbedding(config.max_positions, dim, pad)
        self.embed_layer_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(config.dropout)
        self.relative_bias = relative_bias(config.relative_buckets, config)
        self.layers = nn.ModuleList(
            TransformerLayer(
                dim,
                config.encoder_ffn_embed_dim,
                config.encoder_attention_heads,
                config.dropout,
                config.attention_dropout,
            )
            for _ in range(config.encoder_layers)
        )

    def forward(self, tokens: Tensor, layout: Layout) -> list[Tensor]:
        """States of the given tokens.

        Args:
            tokens: [N] int64, the packed tokens of ``layout``; visible ones keep their original positions.

        Returns:
            the packed states [N, dim] of the embeddings and of every layer, the encoder's output last.
        """
        states = self.embed_tokens(tokens) + self.embed_positions(layout.positions)
        states = [self.dropout(self.embed_layer_norm(states))]
        pattern = attention_pattern(layout, layout, self.relative_bias, self.max_positions)
        for layer in self.layers:
            states.append(layer(states[-1], states[-1], pattern))
        return states
