"""Heads for pretraining, classification, token classification and extractive question answering."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.cross_entropy import linear_cross_entropy
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.packing import BatchLayout


class LMHead(nn.Module):
    """Head of BERT and RoBERTa: dense layer, GELU, layer norm, and the token embedding matrix as output weights.

    With ``untie_output_weights``, it has output weights of its own.

    Attributes:
        loss_kernel: ``kernel`` of :func:`~mae_lm_fairseq.core.cross_entropy.linear_cross_entropy` on a GPU.
    """

    loss_kernel = None

    def __init__(self, config: MaskedAutoencoderConfig, embed_tokens: nn.Embedding):
        super().__init__()
        dim = config.encoder_embed_dim
        self.dense = nn.Linear(dim, dim)
        self.layer_norm = nn.LayerNorm(dim, config.layer_norm_eps)
        self.weight = embed_tokens.weight
        if config.untie_output_weights:
            self.weight = nn.Parameter(torch.empty_like(embed_tokens.weight))
            nn.init.normal_(self.weight, std=config.init_std)
        self.bias = nn.Parameter(torch.zeros(embed_tokens.num_embeddings))

    def forward(self, states: Tensor, layout: BatchLayout | None = None) -> Tensor:
        """Convert hidden states [N, dim] to logits [N, vocabulary]; ``layout`` is not used."""
        return F.linear(self.transform(states), self.weight, self.bias)

    def loss(
        self,
        states: Tensor,
        targets: Tensor,
        layout: BatchLayout | None = None,
        loss_weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross-entropy against ``targets`` [N] and the number of correct predictions.

        Does not materialise all logits of ``states`` [N, dim]; ``layout`` is not used. ``loss_weights`` [N] float32 are
        factors of the positions' cross-entropies.
        """
        kernel = self.loss_kernel if states.is_cuda else None
        return linear_cross_entropy(self.transform(states), self.weight, self.bias, targets, kernel, loss_weights)

    def transform(self, states: Tensor) -> Tensor:
        """Convert hidden states [N, dim] to the vectors [N, dim] that are compared with the token embeddings."""
        return self.layer_norm(F.gelu(self.dense(states)))


class ClassificationHead(nn.Module):
    """Dropout, dense layer, tanh, dropout and output layer on the hidden state of the first token, ``<s>``.

    This is the head of RoBERTa (Liu et al., 2019). With ``inner_dim`` equal to ``dim``, it has the weights of Hugging
    Face's ``RobertaClassificationHead`` and ``MPNetClassificationHead``.

    Args:
        dim: hidden size.
        num_classes: number of classes; 1 for regression.
        inner_dim: output size of the dense layer.
        dropout: probability, for the inputs of both layers.
        init_std: standard deviation of the initial weights.
    """

    def __init__(self, dim: int, num_classes: int, inner_dim: int, dropout: float, init_std: float):
        super().__init__()
        self.dense = nn.Linear(dim, inner_dim)
        self.out_proj = nn.Linear(inner_dim, num_classes)
        self.dropout = Dropout(dropout)
        _initialise(self.dense, init_std)
        _initialise(self.out_proj, init_std)

    def forward(self, features: Tensor) -> Tensor:
        """Convert hidden states [B, T, dim] to logits [B, num_classes]."""
        inner = torch.tanh(self.dense(self.dropout(features[:, 0])))
        return self.out_proj(self.dropout(inner))


class SpanHead(nn.Module):
    """Linear layer that scores each token as start and as end of the answer (BERT, Devlin et al., 2019).

    Has the weights that ``RobertaForQuestionAnswering`` and ``MPNetForQuestionAnswering`` of Hugging Face call
    ``qa_outputs``.

    Args:
        dim: hidden size.
        init_std: standard deviation of the initial weights.
    """

    def __init__(self, dim: int, init_std: float):
        super().__init__()
        self.qa_outputs = nn.Linear(dim, 2)
        _initialise(self.qa_outputs, init_std)

    def forward(self, features: Tensor) -> Tensor:
        """Convert hidden states [B, T, dim] to start and end logits [B, T, 2]."""
        return self.qa_outputs(features)


class TokenClassificationHead(nn.Module):
    """Dropout and a linear layer on the hidden state of every token (BERT, Devlin et al., 2019).

    Has the weights that ``RobertaForTokenClassification`` and ``MPNetForTokenClassification`` of Hugging Face call
    ``classifier``.

    Args:
        dim: hidden size.
        num_classes: number of labels.
        dropout: probability, for the hidden states.
        init_std: standard deviation of the initial weights.
    """

    def __init__(self, dim: int, num_classes: int, dropout: float, init_std: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.labels = num_classes
        self.classifier = nn.Linear(dim, num_classes)
        _initialise(self.classifier, init_std)

    def forward(self, features: Tensor) -> Tensor:
        """Convert hidden states [B, T, dim] to logits [B, T, num_classes]."""
        return self.classifier(self.dropout(features))


def _initialise(layer: nn.Linear, std: float) -> None:
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
