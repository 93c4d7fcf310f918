"""The transformer layer that the encoder and the decoder are made of."""

import torch.nn.functional as F
from torch import Tensor, nn

from .attention import AttentionPattern, MultiheadAttention
from .dropout import Dropout


class TransformerLayer(nn.Module):
    """Attention and feed-forward block, each followed by dropout, residual sum and layer norm (post-layer-norm)."""

    def __init__(self, dim: int, ffn_dim: int, heads: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.self_attn = MultiheadAttention(dim, heads, attention_dropout)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, pattern: AttentionPattern) -> Tensor:
        """New states of the queries.

        Args:
            queries: [number of queries, dim] packed; ``keys`` itself in all layers that update every position.
            keys: [number of keys, dim] packed, the states that are attended to.
        """
        states = self.self_attn_layer_norm(queries + self.dropout(self.self_attn(queries, keys, pattern)))
        update = self.fc2(F.gelu(self.fc1(states)))
        return self.final_layer_norm(states + self.dropout(update))
