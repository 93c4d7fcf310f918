"""Dropout whose random numbers are cheap on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """``torch.nn.Dropout``, with its CPU mask made of 16-bit pieces of 64-bit random integers.

    torch draws one double per element on a CPU, which costs more than the layer around it. The probability is
    rounded to a multiple of 2**-16; the scale uses the rounded one, so the expectation is exact. One byte an element
    is kept for the backward pass.

    Raises:
        ValueError: ``p`` is not in [0, 1).
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout {p} must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return _CheapDropout.apply(x, min(round(self.p * _LEVELS), _LEVELS - 1))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _CheapDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dropped: int) -> Tensor:
        kept = torch.ops.mae_lm_fairseq.cheap_mask(x, dropped)
        ctx.save_for_backward(kept)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return _scale_kept(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return _scale_kept(grad, *ctx.saved_tensors, ctx.scale), None


def _scale_kept(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    # Not masked_fill, which takes several times as long on a CPU.
    return kept.to(x.dtype).mul_(x).mul_(scale)


# An operator of its own: torch.compile would break the graph at each random_, or draw again in the backward pass. It is
# defined in parts because custom_op takes tags only from torch 2.7 on.
torch.library.define(
    "mae_lm_fairseq::cheap_mask",
    "(Tensor x, int dropped) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)


@torch.library.impl("mae_lm_fairseq::cheap_mask", "cpu")
def _cheap_mask(x: Tensor, dropped: int) -> Tensor:
    """[like x] bool: False with probability ``dropped`` / 2**16."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    pieces = words.view(torch.int16)[: x.numel()].view(x.shape)
    return pieces >= dropped - _LEVELS // 2


@torch.library.register_fake("mae_lm_fairseq::cheap_mask")
def _(x: Tensor, dropped: int) -> Tensor:
    return torch.empty(x.shape, dtype=torch.bool)
