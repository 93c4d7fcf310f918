"""Multi-head attention over packed positions."""

import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.attention_backends import AttentionPattern
from mae_lm_fairseq.core.dropout import Dropout


class MultiheadAttention(nn.Module):
    """Scaled dot-product attention (Vaswani et al., 2017) with one joint projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.qkv_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor, pattern: AttentionPattern, queries: Tensor | None = None) -> Tensor:
        """Compute multi-head attention.

        Args:
            states: [number of keys, dim] packed hidden states that are attended to.
            pattern: attention pattern of queries and keys.
            queries: [number of queries, dim] packed; None means all of ``states``.

        Returns:
            [number of queries, dim] packed.
        """
        packed, queries = self._project(states, queries)
        mixed = pattern.attend(packed, queries, self.dropout)
        return self.out_proj(mixed.flatten(1))

    def _project(self, states: Tensor, queries: Tensor | None) -> tuple[Tensor, Tensor | None]:
        heads = self.heads, self.dim // self.heads
        if queries is None:
            return self.qkv_proj(states).unflatten(-1, (3, *heads)), None
        sizes = [self.dim, 2 * self.dim]
        q_weight, kv_weight = self.qkv_proj.weight.split(sizes)
        q_bias, kv_bias = self.qkv_proj.bias.split(sizes)
        q = F.linear(queries, q_weight, q_bias).unflatten(-1, heads)
        kv = F.linear(states, kv_weight, kv_bias).unflatten(-1, (2, *heads))
        return kv, q
