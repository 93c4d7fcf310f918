"""Cross-entropy of a linear output layer without materialising all logits."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Number of logits computed at a time: 64 MiB of float32."""


def linear_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of ``states @ weight.T + bias`` and the number of correct predictions.

    Positions are processed in chunks. The gradient of each chunk is computed in the forward pass, together with its
    loss, so that logits are neither kept for the backward pass nor computed twice.

    Args:
        states: [N, dim].
        weight, bias: [V, dim] and [V].
        targets: [N] int64.

    Returns:
        The loss, a float32 scalar, and the number of positions whose largest logit is the target's, an int64 scalar.
    """
    # Inside an autograd function, neither torch.is_grad_enabled() nor ctx.needs_input_grad knows of torch.no_grad().
    return _LinearCrossEntropy.apply(states, weight, bias, targets, torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, trains: bool
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), device=states.device)
        correct = torch.zeros((), dtype=torch.int64, device=states.device)
        trains = trains and any(ctx.needs_input_grad)
        gradients = [torch.zeros_like(x, dtype=torch.float32) for x in (states, weight, bias)] if trains else []
        ctx.dtypes = [x.dtype for x in (states, weight, bias)]
        # Cast once: autocast would do so for every chunk.
        dtype = F.linear(states[:0], weight[:0], bias[:0]).dtype
        weight = weight.to(dtype)
        chunk = max(1, CHUNK_ELEMENTS // len(weight))
        for start in range(0, len(states), chunk):
            part = slice(start, start + chunk)
            logits, wanted = F.linear(states[part], weight, bias).float(), targets[part, None]
            normaliser = logits.logsumexp(-1, keepdim=True)
            loss += (normaliser - logits.gather(1, wanted)).sum()
            correct += logits.argmax(-1, keepdim=True).eq(wanted).sum()
            if trains:
                error = logits.sub_(normaliser).exp_().scatter_add_(1, wanted, -torch.ones_like(normaliser))
                _add_gradients(gradients, part, error, states[part], weight)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad_loss: Tensor, _) -> tuple[Tensor | None, ...]:
        gradients = (
            gradient.mul_(grad_loss).to(dtype) for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None


def _add_gradients(gradients: list[Tensor], part: slice, error: Tensor, states: Tensor, weight: Tensor):
    """Add the gradients of one chunk to ``gradients``.

    ``error`` [chunk, V] is softmax minus one-hot. Matrix products are computed in the precision of ``weight``, which is
    that of the logits.
    """
    grad_states, grad_weight, grad_bias = gradients
    grad_bias += error.sum(0)
    error = error.to(weight.dtype)
    grad_states[part] = error @ weight
    grad_weight += error.T @ states.to(weight.dtype)
