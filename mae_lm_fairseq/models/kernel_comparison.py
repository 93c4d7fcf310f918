"""Comparison of the kernels with PyTorch's operators on the device that trains."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mae_lm_fairseq.core.attention_backends import AttentionBackend, attention_pattern
from mae_lm_fairseq.core.cross_entropy import linear_cross_entropy
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.core.packing import Layout, batch_layout, to_device
from mae_lm_fairseq.core.transformer import TransformerStack

TOLERANCES = {torch.float32: 0.01, torch.float16: 0.01, torch.bfloat16: 0.05}
"""Relative to the largest value: about ten times the rounding of the inputs of products, which is TF32's in float32."""
LENGTHS = (100, 1, 33, 64)
"""Rows of the comparison: several tiles, one position, an incomplete tile and a full one."""
_PAD, _TOKEN, _MASK = 0, 1, 2


def difference_from_eager(stack: TransformerStack, dtype: torch.dtype) -> float:
    """Return the largest difference between fused and eager attention, relative to the largest value of each tensor.

    Output and gradients of a layer of the stack are compared on a small ragged batch of random states, without dropout.
    With the stack's dropout, for which other kernels are compiled, they must be finite; otherwise the result is NaN.

    Args:
        stack: encoder or decoder, on the device.
        dtype: precision of queries, keys and values.
    """
    attention, positions = stack.layers[0].attention, stack.embed_positions
    device = positions.weight.device
    lengths = torch.tensor(LENGTHS).clamp(max=positions.max_positions)
    tokens = (torch.arange(lengths.max()) < lengths[:, None]).long()  # _TOKEN, and _PAD behind the end
    layout = to_device(batch_layout(tokens, tokens.eq(_TOKEN), _PAD, _MASK), device).sequence

    generator = torch.Generator(device).manual_seed(0)
    shape = (layout.index.numel(), 4, attention.heads, attention.dim // attention.heads)
    values = torch.randn(shape, device=device, generator=generator).to(dtype)
    packed, gradient = values[:, :3].contiguous(), values[:, 3]
    compute = partial(_output_and_gradients, stack, layout, packed, gradient)
    with torch.enable_grad():
        fused = compute(AttentionBackend.fused, 0)
        eager = compute(AttentionBackend.eager, 0)
        with_dropout = compute(AttentionBackend.fused, attention.dropout.p)
    differences = [0 * tensor.float().sum() for tensor in with_dropout]
    return _largest(differences + _differences(fused, eager))


def difference_of_loss(kernel: Callable, head: LMHead, dtype: torch.dtype) -> float:
    """Return the largest difference of a kernel of the loss, and of its gradients, likewise."""
    weight = head.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    states = torch.randn(len(LENGTHS), weight.shape[1], device=weight.device, generator=generator).to(dtype)
    targets = torch.arange(len(LENGTHS), device=weight.device)

    def loss_and_gradients(kernel: Callable | None) -> list[Tensor]:
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in (states, weight, head.bias)]
        loss, _ = linear_cross_entropy(*leaves, targets, kernel)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    with torch.enable_grad():
        return _largest(_differences(loss_and_gradients(kernel), loss_and_gradients(None)))


def _differences(tensors: list[Tensor], references: list[Tensor]) -> list[Tensor]:
    differences = []
    for tensor, reference in zip(tensors, references, strict=True):
        largest = (tensor.float() - reference.float()).abs().max()
        differences.append(largest / reference.float().abs().max())
    return differences


def _largest(differences: list[Tensor]) -> float:
    return float(torch.stack(differences).max())  # NaN if one is, unlike Python's max


def _output_and_gradients(
    stack: TransformerStack, layout: Layout, packed: Tensor, gradient: Tensor, backend: AttentionBackend, p: float
) -> list[Tensor]:
    leaves = [packed.detach().requires_grad_()]
    output = attention_pattern(layout, layout, stack.relative_bias, backend).attend(*leaves, None, Dropout(p))
    if stack.relative_bias is not None and stack.relative_bias.weight.requires_grad:
        leaves.append(stack.relative_bias.weight)
    of_packed, *of_bias = torch.autograd.grad(output, leaves, gradient)
    return [output.detach(), *of_packed.unbind(1), *of_bias]
