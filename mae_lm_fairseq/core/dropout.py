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
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        return x.masked_fill(_cheap_mask(x, dropped), 0.0).mul_(_LEVELS / (_LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


# An operator of its own: torch.compile would break the graph at each random_, or draw again in the backward pass.
@torch.library.custom_op(
    "mae_lm_fairseq::cheap_mask", mutates_args=(), device_types="cpu", tags=(torch.Tag.nondeterministic_seeded,)
)
def _cheap_mask(x: Tensor, dropped: int) -> Tensor:
    """[like x] bool: True with probability ``dropped`` / 2**16."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    pieces = words.view(torch.int16)[: x.numel()].view(x.shape)
    return pieces < dropped - _LEVELS // 2


@_cheap_mask.register_fake
def _(x: Tensor, dropped: int) -> Tensor:
    return torch.empty(x.shape, dtype=torch.bool)
