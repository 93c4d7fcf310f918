"""The language model head."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cross_entropy import linear_cross_entropy


class LMHead(nn.Module):
    """Dense layer, gelu, layer norm, and the token embedding matrix as output weights (BERT's, RoBERTa's head)."""

    def __init__(self, dim: int, embed_tokens: nn.Embedding):
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.layer_norm = nn.LayerNorm(dim)
        self.weight = embed_tokens.weight
        self.bias = nn.Parameter(torch.zeros(embed_tokens.num_embeddings))

    def forward(self, states: Tensor) -> Tensor:
        """[N, dim] -> logits [N, vocabulary]."""
        return F.linear(self.transform(states), self.weight, self.bias)

    def loss(self, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy against ``targets`` [N], and the number of right predictions; without the logits."""
        return linear_cross_entropy(self.transform(states), self.weight, self.bias, targets)

    def transform(self, states: Tensor) -> Tensor:
        """[N, dim] -> [N, dim]: what is compared with the token embeddings."""
        return self.layer_norm(F.gelu(self.dense(states)))
