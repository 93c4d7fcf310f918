"""The chunked loss against a plain one: value, number of correct predictions, all gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mae_lm_fairseq.core import cross_entropy
from mae_lm_fairseq.core.cross_entropy import linear_cross_entropy
from tests.support.comparisons import assert_close

N, DIM, VOCABULARY = 37, 8, 50


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((N, DIM), (VOCABULARY, DIM), (VOCABULARY,))
    tensors = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    return tensors, torch.randint(VOCABULARY, (N,), generator=generator)


def plain(tensors, targets):
    logits = F.linear(*tensors).float()
    return F.cross_entropy(logits, targets, reduction="sum"), logits.argmax(-1).eq(targets).sum()


@pytest.mark.parametrize("positions_in_a_chunk", [1, 10, N, 1000])
def test_value_count_and_gradients(monkeypatch, positions_in_a_chunk):
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", positions_in_a_chunk * VOCABULARY)
    tensors, targets = inputs()
    results = [function(tensors, targets) for function in (lambda t, y: linear_cross_entropy(*t, y), plain)]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=0)
    assert results[0][1] == results[1][1]
    ours, theirs = (torch.autograd.grad(3 * loss, tensors) for loss, _ in results)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def like_a_kernel(logits, targets, gradient):
    """Return losses [N] in place of [N, 1]."""
    return [values.flatten() for values in cross_entropy._cross_entropy_(logits, targets, gradient)]


@pytest.mark.parametrize("kernel", [None, like_a_kernel])
def test_weights_of_positions(monkeypatch, kernel):
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 10 * VOCABULARY)
    monkeypatch.setattr(cross_entropy, "KERNEL_BYTES", 10 * VOCABULARY * 4)
    tensors, targets = inputs()
    weights = 1 / torch.rand(N, generator=torch.Generator().manual_seed(1))
    loss, correct = linear_cross_entropy(*tensors, targets, kernel, weights)
    losses = F.cross_entropy(F.linear(*tensors), targets, reduction="none")
    expected = (weights * losses).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert correct == plain(tensors, targets)[1]
    ours, theirs = (torch.autograd.grad(3 * summed, tensors) for summed in (loss, expected))
    for gradient, reference in zip(ours, theirs, strict=True):
        assert_close(gradient, reference, 1e-6 * reference.abs().max().item())
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(*tensors, targets, kernel, weights)[0], loss)


@pytest.mark.parametrize("kernel", [None, like_a_kernel])
def test_negative_targets_are_ignored(monkeypatch, kernel):
    """Also where a chunk has no other."""
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 4 * VOCABULARY)
    monkeypatch.setattr(cross_entropy, "KERNEL_BYTES", 4 * VOCABULARY * 4)
    tensors, targets = inputs()
    targets[8:17] = -1
    loss, correct = linear_cross_entropy(*tensors, targets, kernel)
    states, weight, bias = tensors
    counted = targets >= 0
    expected, expected_correct = plain((states[counted], weight, bias), targets[counted])
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert correct == expected_correct
    ours, theirs = (torch.autograd.grad(summed, tensors) for summed in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert not ours[0][~counted].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    tensors, targets = inputs(dtype)
    exact = [x.detach().float().requires_grad_() for x in tensors]
    loss, _ = linear_cross_entropy(*tensors, targets)
    expected, _ = plain(exact, targets)
    assert loss.dtype is torch.float32
    # Half an ulp of the logits, which are below 16, and of the sums.
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(loss, expected, rtol=2 * epsilon, atol=0)
    gradients = torch.autograd.grad(loss, tensors)
    for gradient, reference in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        assert gradient.dtype is dtype
        assert_close(gradient.float(), reference, 8 * epsilon * reference.abs().max().item())


def test_under_autocast():
    tensors, targets = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(*tensors, targets)
    expected, _ = plain(tensors, targets)
    assert loss != expected
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0)
    assert all(gradient.dtype is torch.float32 for gradient in torch.autograd.grad(loss, tensors))


def test_no_positions():
    tensors, targets = inputs()
    states = tensors[0][:0].detach().requires_grad_()
    loss, correct = linear_cross_entropy(states, *tensors[1:], targets[:0])
    assert loss == 0
    assert correct == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, [states, *tensors[1:]]))


class Watch(TorchDispatchMode):
    """Records the shapes of all tensors that operators return, except for views, and of those that are cast."""

    def __init__(self):
        super().__init__()
        self.shapes = set()
        self.casts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default:
            self.casts.append(tuple(result.shape))
        if not function.is_view:
            leaves = torch.utils._pytree.tree_leaves(result)
            self.shapes |= {tuple(x.shape) for x in leaves if torch.is_tensor(x)}
        return result


def test_autocast_casts_the_weights_once(monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 5 * VOCABULARY)
    tensors, targets = inputs()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), Watch() as watch:
        linear_cross_entropy(*tensors, targets)
    assert watch.casts.count((VOCABULARY, DIM)) == 1


def test_complete_logits_are_never_in_memory(monkeypatch):
    monkeypatch.setattr(cross_entropy, "CHUNK_ELEMENTS", 4 * VOCABULARY)
    tensors, targets = inputs()
    with Watch() as watch:
        linear_cross_entropy(*tensors, targets)[0].backward()
    largest = max(math.prod(shape) for shape in watch.shapes)
    assert largest == VOCABULARY * DIM  # the weight's gradient
    assert largest < N * VOCABULARY


def test_validation_computes_no_gradients():
    tensors, targets = inputs()
    with torch.no_grad(), Watch() as watch:
        loss, correct = linear_cross_entropy(*tensors, targets)
    assert not {tuple(tensor.shape) for tensor in tensors} & watch.shapes
    assert torch.equal(torch.stack([loss, correct]), torch.stack(linear_cross_entropy(*tensors, targets)).detach())
