"""Cross-entropy of logits in one kernel, with its gradient in their place; in Triton.

The softmax is computed online (Milakov and Gimelshein, 2018, arXiv 1805.02867), in float32: one pass over the logits of
a position for their normaliser and their largest one, and a second one that writes softmax minus one-hot.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits of a position that are processed at a time."""
WARPS = 8
LEAST = tl.constexpr(-3.4e38)
"""In place of -inf, whose difference from itself would be NaN."""


@triton.jit
def _cross_entropy(
    X, targets, losses, correct, stride, vocabulary, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the loss of a position and whether its largest logit, the first of equal ones, is the target's."""
    row = tl.program_id(0)
    X += row.to(tl.int64) * stride
    target = tl.load(targets + row).to(tl.int32)
    has_target = target >= 0
    of_target = tl.load(X + tl.maximum(target, 0)).to(tl.float32)  # before any is overwritten
    lanes = tl.arange(0, BLOCK)
    largest, total = tl.full([BLOCK], LEAST, tl.float32), tl.zeros([BLOCK], tl.float32)
    best = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        token = start + lanes
        x = tl.load(X + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
        best = tl.where(x > largest, token, best)
        new = tl.maximum(largest, x)
        total = total * tl.exp(largest - new) + tl.exp(x - new)
        largest = new
    top = tl.max(largest, 0)
    normaliser = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))
    tl.store(losses + row, tl.where(has_target, normaliser - of_target, 0.0))
    tl.store(correct + row, tl.min(tl.where(largest == top, best, vocabulary), 0) == target)
    if GRADIENT:
        normaliser = tl.where(has_target, normaliser, float("inf"))  # so that all probabilities are 0
        for start in range(0, vocabulary, BLOCK):
            token = start + lanes
            p = tl.exp(tl.load(X + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32) - normaliser)
            tl.store(X + token, (p - (token == target)).to(X.dtype.element_ty), mask=token < vocabulary)


def cross_entropy_(logits: Tensor, targets: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
    """Return the loss of each position, and whether its largest logit is the target's.

    Args:
        logits: [N, V] float16, bfloat16 or float32; with ``gradient``, replaced by the gradient of the summed loss.
        targets: [N] int64; a position whose target is negative has neither loss nor gradient.

    Returns:
        [N] float32 and [N] bool.
    """
    losses = torch.empty(len(logits), device=logits.device)
    correct = torch.empty(len(logits), dtype=torch.bool, device=logits.device)
    if len(logits):
        with torch.cuda.device_of(logits):  # triton launches on the current device
            arguments = logits, targets, losses, correct, logits.stride(0), logits.shape[1]
            _cross_entropy[(len(logits),)](*arguments, GRADIENT=gradient, BLOCK=BLOCK, num_warps=WARPS)
    return losses, correct
