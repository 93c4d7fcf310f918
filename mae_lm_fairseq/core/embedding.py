"""Embeddings of tokens and of positions, whose gradients are the same in every run."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Embedding):
    """``torch.nn.Embedding`` whose gradient is the same in every run.

    torch 2.11 and later sum the gradients of frequent rows on a GPU in any order (pytorch 172454), unless deterministic
    algorithms are required; then a resumed run differs from one that was not interrupted.
    """

    def forward(self, rows: Tensor) -> Tensor:
        return _LookUp.apply(self.weight, rows, self.padding_idx) if self.training else super().forward(rows)


class PositionEmbedding(Embedding):
    """Learned absolute positions. Position 0 uses row ``pad + 1``, as in fairseq's RoBERTa."""

    def __init__(self, max_positions: int, dim: int, pad: int):
        super().__init__(max_positions + pad + 1, dim, padding_idx=pad)
        self.max_positions = max_positions

    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions + self.padding_idx + 1)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, rows: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.of_weight = len(weight), -1 if padding_idx is None else padding_idx
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return torch.ops.aten.embedding_dense_backward(grad, *ctx.saved_tensors, *ctx.of_weight, False), None, None
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
