"""Dropout with fast random numbers, on CPUs and in compiled code."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.kernels.operator import RANDOM_LEVELS, keep

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """``torch.nn.Dropout`` whose CPU mask is drawn as 16-bit parts of 64-bit random integers; in compiled code, hashed.

    On a CPU, torch draws one double per element, which costs more than the layer around it. Here the probability is
    rounded to a multiple of 2**-16. The scale uses the rounded value, so the expectation is exact. One byte per element
    is kept for the backward pass.

    Raises:
        ValueError: if ``p`` is not in [0, 1).
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout {p} must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if torch.compiler.is_compiling():
            return hashed_dropout(x, self.p)
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        return _CheapDropout.apply(x, dropped)


def hashed_dropout(x: Tensor, p: float) -> Tensor:
    """Apply dropout to [..., dim] by the hash of the attention kernel, from one random number for each row.

    Compiled code with a random number of torch for each element costs more than the layer norm around it.
    """
    limit = RANDOM_LEVELS // 2
    rows = x.shape[:-1].numel()
    random = torch.randint(-limit, limit, (rows, 1), dtype=torch.int32, device=x.device)
    kept = keep(random, x.shape[-1], p).view_as(x)
    return (x * kept).to(x.dtype)


def random_words(number: int) -> Tensor:
    """Return random integers of 64 bits each, [number] int64."""
    return torch.empty(number, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)


class _CheapDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:
        words = random_words(-(-x.numel() // 4))
        random = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = random >= dropped - _LEVELS // 2
        ctx.save_for_backward(kept)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return _scale_kept(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _scale_kept(grad, *ctx.saved_tensors, ctx.scale), None


def _scale_kept(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    # masked_fill is several times slower on a CPU.
    return kept.to(x.dtype).mul_(x).mul_(scale)
