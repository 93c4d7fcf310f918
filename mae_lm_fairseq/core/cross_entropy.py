"""Cross-entropy and log-probabilities of a linear output layer without materialising all logits."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Number of logits computed at a time: 64 MiB of float32."""
KERNEL_BYTES = 1 << 27
"""Bytes of logits computed at a time with a kernel. Products of fewer positions leave a GPU idle."""


def linear_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    kernel: Callable | None = None,
    loss_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy of ``states @ weight.T + bias`` and the number of correct predictions.

    Positions are processed in chunks. The gradient of each chunk is computed in the forward pass, together with its
    loss, so that logits are neither kept for the backward pass nor computed twice.

    Args:
        states: [N, dim].
        weight, bias: [V, dim] and [V].
        targets: [N] int64; a position whose target is negative has neither loss nor gradient.
        kernel: :func:`~mae_lm_fairseq.core.kernels.fused_loss.cross_entropy_`, which takes logits in any precision.
        loss_weights: [N] float32, the factor of each position's loss; None if all are 1.

    Returns:
        The loss, a float32 scalar (float64 for states in float64), and the number of positions whose largest logit is
        the target's, an int64 scalar.
    """
    # Inside an autograd function, neither torch.is_grad_enabled() nor ctx.needs_input_grad knows of torch.no_grad().
    return _LinearCrossEntropy.apply(states, weight, bias, targets, torch.is_grad_enabled(), kernel, loss_weights)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        trains: bool,
        kernel: Callable | None,
        loss_weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        exact = _dtype_of_sums(states)
        loss = torch.zeros((), dtype=exact, device=states.device)
        correct = torch.zeros((), dtype=torch.int64, device=states.device)
        trains = trains and any(ctx.needs_input_grad)
        gradients = _zero_gradients(states, weight, bias) if trains else []
        ctx.dtypes = [x.dtype for x in (states, weight, bias)]
        # Cast once: autocast would do so for every chunk.
        dtype = F.linear(states[:0], weight[:0], bias[:0]).dtype
        weight = weight.to(dtype)
        compute = kernel or _cross_entropy_
        elements = KERNEL_BYTES // dtype.itemsize if kernel else CHUNK_ELEMENTS
        for part in _chunks(len(states), len(weight), elements):
            logits = F.linear(states[part], weight, bias)
            error = logits if kernel else logits.to(exact)
            losses, is_correct = compute(error, targets[part], trains)
            if loss_weights is not None:
                losses = losses.flatten() * loss_weights[part]
                error *= loss_weights[part, None]  # of logits, if it does not train
            loss += losses.sum()
            correct += is_correct.sum()
            if trains:
                _add_gradients(gradients, part, error, states[part], weight)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad_loss: Tensor, _) -> tuple[Tensor | None, ...]:
        gradients = []
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            gradients.append(gradient.mul_(grad_loss).to(dtype))
        return *gradients, None, None, None, None


def _cross_entropy_(logits: Tensor, targets: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
    targets = targets[:, None]
    has_target = targets.ge(0)
    token = targets.clamp(min=0)
    normaliser = logits.logsumexp(-1, keepdim=True)
    losses = normaliser - logits.gather(1, token)
    losses = losses.masked_fill(~has_target, 0)
    is_correct = logits.argmax(-1, keepdim=True).eq(targets)
    if gradient:
        normaliser = normaliser.masked_fill(~has_target, torch.inf)  # so that all probabilities are 0
        probabilities = logits.sub_(normaliser).exp_()
        probabilities.scatter_add_(1, token, -has_target.to(logits.dtype))
    return losses, is_correct


def linear_log_probabilities(states: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of several tokens at each position, and each position's most likely token.

    Positions are processed in chunks. The backward pass computes the logits of each chunk again, because their
    gradients depend on what the log-probabilities are used for.

    Args:
        states: [N, dim].
        weight, bias: [V, dim] and [V].
        wanted: [N, J] int64, the tokens.

    Returns:
        Log-probabilities [N, J] float32 and tokens [N] int64.
    """
    return _LinearLogProbabilities.apply(states, weight, bias, wanted)


class _LinearLogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        ctx.dtype = F.linear(states[:0], weight[:0], bias[:0]).dtype
        cast = weight.to(ctx.dtype)
        log_probs = torch.empty(wanted.shape, device=states.device)
        normalisers = torch.empty(len(states), 1, device=states.device)
        best = wanted.new_empty(len(states))
        for part in _chunks(len(states), len(weight), CHUNK_ELEMENTS):
            logits = F.linear(states[part], cast, bias).float()
            of_wanted = logits.gather(1, wanted[part])
            largest, best[part] = logits.max(-1)
            largest = largest[:, None]
            # In place, where logsumexp would allocate another chunk.
            sums = logits.sub_(largest).exp_().sum(-1, keepdim=True)
            normalisers[part] = sums.log_() + largest
            log_probs[part] = of_wanted - normalisers[part]
        ctx.save_for_backward(states, weight, bias, wanted, normalisers)
        ctx.mark_non_differentiable(best)
        return log_probs, best

    @staticmethod
    def backward(ctx, grad: Tensor, _) -> tuple[Tensor | None, ...]:
        states, weight, bias, wanted, normalisers = ctx.saved_tensors
        gradients = _zero_gradients(states, weight, bias)
        cast = weight.to(ctx.dtype)
        cast_bias = bias.to(ctx.dtype)
        for part in _chunks(len(states), len(weight), CHUNK_ELEMENTS):
            logits = F.linear(states[part].to(ctx.dtype), cast, cast_bias).float()
            probabilities = logits.sub_(normalisers[part]).exp_()
            total = grad[part].sum(1, keepdim=True)
            error = probabilities.mul_(-total).scatter_add_(1, wanted[part], grad[part])
            _add_gradients(gradients, part, error, states[part], cast)
        of_states, of_weight, of_bias = gradients
        return of_states.to(states.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype), None


def _zero_gradients(*inputs: Tensor) -> list[Tensor]:
    """Return the memory in which the gradients of states, weight and bias are summed."""
    return [torch.zeros_like(x, dtype=_dtype_of_sums(x)) for x in inputs]


def _dtype_of_sums(x: Tensor) -> torch.dtype:
    """Return float32, or float64 for a tensor in float64."""
    return torch.promote_types(x.dtype, torch.float32)


def _chunks(positions: int, vocabulary: int, elements: int) -> Iterator[slice]:
    """Yield the slices of positions whose logits are computed at a time."""
    chunk = max(1, elements // vocabulary)
    return (slice(start, start + chunk) for start in range(0, positions, chunk))


def _add_gradients(gradients: list[Tensor], part: slice, error: Tensor, states: Tensor, weight: Tensor):
    """Add the gradients of one chunk to ``gradients``.

    ``error`` [chunk, V] is softmax minus one-hot. Matrix products are computed in the precision of ``weight``, which is
    that of the logits.
    """
    grad_states, grad_weight, grad_bias = gradients
    grad_bias += error.sum(0, dtype=grad_bias.dtype)
    error = error.to(weight.dtype)
    grad_states[part] = error @ weight
    grad_weight += error.T @ states.to(weight.dtype)
