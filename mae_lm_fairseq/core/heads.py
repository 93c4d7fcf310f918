"""What stands on top of the network: the heads of pretraining, of classification, and of answers in a text."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.cross_entropy import linear_cross_entropy
from mae_lm_fairseq.core.dropout import Dropout


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


class ClassificationHead(nn.Module):
    """Dropout, dense layer, tanh, dropout and output layer on the state of the first token, ``<s>``.

    The head of RoBERTa (Liu et al., 2019), and weight for weight Hugging Face's ``RobertaClassificationHead`` and
    ``MPNetClassificationHead`` where ``inner_dim`` is ``dim``.

    Args:
        dim: width of the states.
        num_classes: number of classes; 1 for regression.
        inner_dim: width of the dense layer's output.
        dropout: on what enters either layer.
        init_std: standard deviation of the initial weights.
    """

    def __init__(self, dim: int, num_classes: int, inner_dim: int, dropout: float, init_std: float):
        super().__init__()
        self.dense = nn.Linear(dim, inner_dim)
        self.out_proj = nn.Linear(inner_dim, num_classes)
        self.dropout = Dropout(dropout)
        for layer in (self.dense, self.out_proj):
            nn.init.normal_(layer.weight, std=init_std)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """[B, T, dim] -> [B, num_classes]."""
        inner = torch.tanh(self.dense(self.dropout(features[:, 0])))
        return self.out_proj(self.dropout(inner))


class SpanHead(nn.Module):
    """How much each token is the start, or the end, of the answer: one linear layer (BERT's, Devlin et al., 2019).

    Weight for weight what Hugging Face's ``RobertaForQuestionAnswering`` and ``MPNetForQuestionAnswering`` call
    ``qa_outputs``.

    Args:
        dim: width of the states.
        init_std: standard deviation of the initial weights.
    """

    def __init__(self, dim: int, init_std: float):
        super().__init__()
        self.qa_outputs = nn.Linear(dim, 2)
        nn.init.normal_(self.qa_outputs.weight, std=init_std)
        nn.init.zeros_(self.qa_outputs.bias)

    def forward(self, features: Tensor) -> Tensor:
        """[B, T, dim] -> [B, T, 2], logits of start and end."""
        return self.qa_outputs(features)
