"""Tests of the kernels in Triton's interpreter, which triton chooses when it is imported.

``test_fused_attention.py`` runs them in a process of its own with TRITON_INTERPRET=1; pytest does not collect this file
by itself.
"""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from mae_lm_fairseq.core import attention_backends, cross_entropy
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.fixed_sizes import IGNORED
from mae_lm_fairseq.core.kernels import fused_attention, operator
from mae_lm_fairseq.core.kernels.fused_loss import cross_entropy_
from mae_lm_fairseq.core.kernels.operator import RANDOM_LEVELS, PositionBias, Rows, attend, random_numbers
from mae_lm_fairseq.core.relative_position import relative_position_bucket, symmetric_bucket
from mae_lm_fairseq.models.kernel_comparison import (
    TOLERANCES as TOLERANCES_ON_A_GPU,
    difference_from_eager,
    difference_of_loss,
)
from tests.core.test_attention_backends import gradients
from tests.core.test_operator import test_operator_is_what_it_declares  # noqa: F401 (of the kernels, here)
from tests.support.networks import VARIANTS, batch, masked, network, text

KERNELS = torch.library.Library("mae_lm_fairseq", "IMPL")
for kernel in (fused_attention.attend, fused_attention.attend_backward):
    KERNELS.impl(kernel.__name__, kernel, "CPU", allow_override=True)  # in place of the equations
BUCKETS, MAX_DISTANCE, REACH = 16, 32, 160
BUCKETINGS = [relative_position_bucket, symmetric_bucket]
SEED = 7
SLOW = pytest.mark.slow
# Relative to the largest value: rounding of sums in another order, and of the inputs of products to half precision.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Case:
    """Rows of queries and keys at random positions, with random values and output gradients in float64."""

    def __init__(
        self, queries: list[int], keys: list[int], heads: int = 2, head_size: int = 16, bucketing=None, device="cpu"
    ):
        self.generator, self.device = torch.Generator().manual_seed(SEED), device
        starts = [torch.tensor([0, *lengths]).cumsum(0).int().to(device) for lengths in (queries, keys)]
        positions = [torch.cat([self._positions(number) for number in lengths]) for lengths in (queries, keys)]
        self.rows = Rows(*starts, *(one.to(device) for one in positions), max(queries), max(keys))
        self.bucket = bucketing and bucketing(torch.arange(-REACH, REACH + 1), BUCKETS, MAX_DISTANCE).to(device)
        shapes = [(sum(queries), heads, head_size), *2 * [(sum(keys), heads, head_size)]]
        self.values = [self._draw(*shape) for shape in shapes] + ([self._draw(BUCKETS, heads)] if bucketing else [])
        self.gradient = self._draw(*shapes[0])

    def _positions(self, number: int) -> Tensor:
        return torch.randperm(REACH + 1, generator=self.generator)[:number].sort().values

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.device)

    def fused(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0, packed: bool = False) -> list[Tensor]:
        """Return the kernel's output and gradients, with queries apart from keys and values or in one tensor."""
        values = [value.to(dtype).requires_grad_() for value in self.values]
        bias = PositionBias.of(values[3], self.bucket, self.rows) if self.bucket is not None else None
        torch.manual_seed(SEED)
        apart = 0 if packed else 1
        together = torch.stack(values[apart:3], 1)
        output = attend(together, values[0] if apart else None, self.rows, bias, dropout)
        output.backward(self.gradient.to(dtype))
        return [output.detach(), *(value.grad for value in values)]

    def equations(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> tuple[list[Tensor], list[Tensor]]:
        """Return output and gradients of the equations in float64, for inputs rounded to ``dtype``, and bounds.

        A bound is what the rounding of D_i = dO_i O_i alone may change in a value, as dS_ij = P_ij (dP_ij - D_i): O is
        stored in ``dtype``, and dO_i O_i is a sum of products. Where a query sees one key, the two terms are equal, and
        the rounding is all that is left.
        """
        values = [value.to(dtype).double().requires_grad_() for value in self.values]
        magnitudes = [value.detach().abs().requires_grad_() for value in values]
        gradient = self.gradient.to(dtype).double()
        torch.manual_seed(SEED)
        random = random_numbers(len(values[0]), values[0][:, None])
        output, rounding_of_scores = torch.zeros_like(values[0]), values[0].new_zeros(())
        for q, k in zip(self._slices(0), self._slices(1), strict=True):
            probabilities = self._scores(values, q, k).softmax(-1)
            weights = probabilities * kept(random[q], probabilities.shape[2], dropout)
            row_output = torch.einsum("hqk,khd->qhd", weights, values[2][k])
            output = output.index_copy(0, torch.arange(q.start, q.stop, device=self.device), row_output)
            rounding = torch.finfo(dtype).eps * (gradient[q] * row_output.detach()).abs().sum(-1).T[:, :, None]
            rounding = probabilities.detach() * rounding
            rounding_of_scores = rounding_of_scores + (rounding * self._scores(magnitudes, q, k)).sum()
        output.backward(gradient)
        bounds = torch.autograd.grad(rounding_of_scores, magnitudes, allow_unused=True, materialize_grads=True)
        return [output.detach(), *(value.grad for value in values)], [torch.zeros_like(output), *bounds]

    def _scores(self, values: list[Tensor], q: slice, k: slice) -> Tensor:
        """Return S [heads, queries, keys] of a row."""
        scores = torch.einsum("qhd,khd->hqk", values[0][q], values[1][k]) / values[0].shape[2] ** 0.5
        if self.bucket is None:
            return scores
        offsets = self.rows.key_positions[k] - self.rows.query_positions[q, None]
        return scores + values[3][self.bucket[offsets + REACH]].permute(2, 0, 1)

    def _slices(self, which: int) -> list[slice]:
        return [slice(*pair) for pair in itertools.pairwise(self.rows[which].tolist())]


def kept(random: Tensor, keys: int, dropout: float) -> Tensor:
    """Return Z [heads, queries, keys] of a row by the random numbers of its queries, [queries, heads] int32."""
    low = (1 << 32) - 1
    x = (random.T.long() & low)[:, :, None] ^ (torch.arange(keys, device=random.device) * 0x9E3779B9 & low)
    x = (x ^ x >> 16) * 0x7FEB352D & low
    x = (x ^ x >> 15) * 0x846CA68B & low
    dropped = round(dropout * RANDOM_LEVELS)
    return (x >= dropped).double() * RANDOM_LEVELS / (RANDOM_LEVELS - dropped)


def assert_equal(case: Case, dtype: torch.dtype = torch.float64, dropout: float = 0.0, packed: bool = False):
    fused, equations = case.fused(dtype, dropout, packed), case.equations(dtype, dropout)
    for found, expected, bound in zip(fused, *equations, strict=True):
        assert found.dtype is dtype
        if expected.numel():
            tolerance = TOLERANCES[dtype] * max(expected.abs().max(), 1e-3)
            assert ((found.double() - expected).abs() <= tolerance + bound).all()


@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=3),
    head_size=st.sampled_from([16, 24, 64]),
    bucketing=st.sampled_from([*BUCKETINGS, None]),
    dropout=st.sampled_from([0.0, 0.25]),
)
def test_output_and_gradients_equal_the_equations(rows, head_size, bucketing, dropout):
    queries, keys = map(list, zip(*rows, strict=True))
    assert_equal(Case(queries, keys, 2, head_size, bucketing), dropout=dropout)


@pytest.mark.parametrize("bucketing", BUCKETINGS)
def test_several_tiles(bucketing):
    assert_equal(Case([128, 1, 0], [97, 0, 3], 1, 16, bucketing), dropout=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_precisions(dtype):
    assert_equal(Case([70, 5], [66, 9], 2, 64, relative_position_bucket), dtype, dropout=0.1)


def test_queries_keys_and_values_in_one_tensor():
    assert_equal(Case([40, 3], [40, 3], 2, 16, relative_position_bucket), dropout=0.1, packed=True)


def test_nothing_to_attend():
    for queries, keys in (([0], [5]), ([3], [0]), ([0, 0], [0, 0])):
        case = Case(queries, keys, bucketing=relative_position_bucket)
        assert not any(tensor.any() for tensor in case.fused())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_dummy_rows_change_no_bit_of_the_others(monkeypatch, dropout):
    """Rows behind a batch, empty ones among them, and a width that no row has (core/fixed_sizes.py)."""
    real = [20, 7]
    dummies = [64, 3, 0]
    number = sum(real)
    case = Case(real + dummies, real + dummies, bucketing=relative_position_bucket)
    case.rows = case.rows._replace(most_queries=128, most_keys=128)
    case.gradient[number:] = 0  # as the loss ignores them
    random = random_numbers(sum(real + dummies), case.values[0][:, None])
    monkeypatch.setattr(operator, "random_numbers", lambda *sizes: random[: sizes[0]])
    output, *gradients_of_values, of_table = case.fused(torch.float32, dropout, packed=True)

    alone = Case(real, real, bucketing=relative_position_bucket)
    alone.rows = alone.rows._replace(
        query_positions=case.rows.query_positions[:number], key_positions=case.rows.key_positions[:number]
    )
    alone.values = [*(value[:number] for value in case.values[:3]), case.values[3]]
    alone.gradient = case.gradient[:number]
    expected, *expected_gradients, expected_of_table = alone.fused(torch.float32, dropout, packed=True)
    assert torch.equal(output[:number], expected)
    for gradient, reference in zip(gradients_of_values, expected_gradients, strict=True):
        assert torch.equal(gradient[:number], reference)
        assert not gradient[number:].any()
    # Programs of other rows add to it in another order.
    largest = expected_of_table.abs().max().item()
    torch.testing.assert_close(of_table, expected_of_table, rtol=0, atol=TOLERANCES[torch.float32] * largest)


def test_two_runs_are_bit_equal():
    case = Case([40, 7], [33, 50], 2, 16, relative_position_bucket)
    for first, second in zip(case.fused(torch.float16, 0.2), case.fused(torch.float16, 0.2), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_of_neighbours_is_independent(dropout):
    torch.manual_seed(SEED)
    random = random_numbers(256, torch.empty(256, 3, 8, 16))
    dropped = kept(random, 512, dropout).eq(0).double()  # [heads, queries, keys]; the kernel has the same, see above
    limit = 5 / dropped.numel() ** 0.5  # five standard deviations, of a mean and of a correlation
    deviations = (dropped - dropout) / (dropout * (1 - dropout)) ** 0.5
    assert abs(deviations.mean()) < limit
    for dimension in range(3):
        for distance in (1, 2, 3, 4):
            assert abs((deviations * deviations.roll(distance, dimension)).mean()) < limit
    assert abs(deviations.mean(2).square().mean() * 512 - 1) < 5 * (2 / (256 * 8)) ** 0.5  # between queries


RAGGED = masked(batch(text(20), text(7, 1)), [(0, 2), (0, 3), (1, 5)])
SMALL = {"encoder_layers": 2, "encoder_attention_heads": 2, "dropout": 0}
"""A row, layer or head more takes seconds in the interpreter."""


def states_and_gradients(net, backend: AttentionBackend) -> dict[str, Tensor]:
    torch.manual_seed(SEED)
    states, gradients_by_name = gradients(net, backend, *RAGGED)
    return gradients_by_name | {"states": states}


IN_THE_GATE = ("mae_lm", "mae_lm_3ml_cross")
"""Their attention has all forms that a network's can have."""


@pytest.mark.parametrize(
    "variant", [name if name in IN_THE_GATE else pytest.param(name, marks=SLOW) for name in VARIANTS]
)
def test_every_network_equals_eager(variant):
    net = network(variant, attention_dropout=0, **SMALL).double()
    expected = states_and_gradients(net, AttentionBackend.eager)
    fused = states_and_gradients(net, AttentionBackend.fused)
    assert fused.keys() == expected.keys()
    assert any("relative_bias" in name and gradient.any() for name, gradient in fused.items())
    for name, tensor in fused.items():
        # Eager attention computes its scores in float32, and the kernel multiplies its bias by log2(e) in float32.
        tolerance = 3e-7 * (1 + float(expected[name].abs().max()))
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=tolerance, msg=name)


def test_comparison_before_training(monkeypatch):
    net = network("mae_lm", **SMALL)
    assert difference_from_eager(net.encoder, torch.float32) < 1e-5  # rounding
    right = attention_backends.attend
    monkeypatch.setattr(attention_backends, "attend", lambda packed, *others: right(1.1 * packed, *others))
    assert difference_from_eager(net.encoder, torch.float32) > TOLERANCES_ON_A_GPU[torch.float32]
    broken = lambda *inputs: right(*inputs) / (1 - bool(inputs[-1]))  # noqa: E731
    monkeypatch.setattr(attention_backends, "attend", broken)
    assert math.isnan(difference_from_eager(net.encoder, torch.float32))  # it fails with dropout alone


def test_recomputed_activations_have_the_same_dropout():
    net = network("mae_lm_roberta", attention_dropout=0.3, **SMALL | {"encoder_layers": 1}).train()
    expected = states_and_gradients(net, AttentionBackend.fused)
    for stack in net.stacks():
        stack.checkpoint_activations = True
    recomputed = states_and_gradients(net, AttentionBackend.fused)
    assert all(torch.equal(recomputed[name], tensor) for name, tensor in expected.items())


@SLOW
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_size", [16, 32, 64, 80, 128])
def test_long_rows(head_size, dtype):
    assert_equal(Case([150, 33, 64], [140, 64, 1], 2, head_size, relative_position_bucket), dtype, dropout=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [100, 4097, pytest.param(32_000, marks=SLOW)])
def test_loss_and_its_gradient(vocabulary, dtype):
    generator = torch.Generator().manual_seed(SEED)
    logits = (3 * torch.randn(5, vocabulary, generator=generator)).to(dtype)
    targets = torch.randint(vocabulary, (5,), generator=generator)
    targets[0], targets[1] = logits[0].argmax(), logits[1].argmax()
    logits[1, targets[1] // 2] = logits[1, targets[1]]  # two largest: the first one counts
    targets[2] = IGNORED
    reference = logits.float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(reference, targets, reduction="none", ignore_index=IGNORED)
    expected.sum().backward()
    evaluated = cross_entropy_(gradient := logits.clone(), targets, False)
    assert torch.equal(gradient, logits)
    losses, correct = cross_entropy_(gradient, targets, True)
    assert all(map(torch.equal, evaluated, (losses, correct)))
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(correct, logits.float().argmax(1) == targets)
    assert correct.tolist()[:2] == [True, int(targets[1]) == int(targets[1]) // 2]
    torch.testing.assert_close(gradient.float(), reference.grad, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_comparison_of_the_loss(monkeypatch, chunk):
    head = network("mae_lm", **SMALL).lm_head
    monkeypatch.setattr(cross_entropy, "KERNEL_BYTES", chunk * len(head.bias) * torch.float32.itemsize)
    assert difference_of_loss(cross_entropy_, head, torch.float32) < 1e-6
    assert difference_of_loss(cross_entropy_, head, torch.bfloat16) < TOLERANCES_ON_A_GPU[torch.bfloat16]
    doubled = lambda *inputs: (2 * cross_entropy_(*inputs)[0], inputs[1])  # noqa: E731
    assert difference_of_loss(doubled, head, torch.float32) > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_reach_the_loss(dtype):
    head = network("mae_lm", **SMALL).lm_head
    generator = torch.Generator().manual_seed(SEED)
    states = torch.randn(9, head.weight.shape[1], generator=generator)
    weights = 1 / torch.rand(9, generator=generator)
    leaves = [x.detach().to(dtype).requires_grad_() for x in (states, head.weight, head.bias)]
    results = []
    for kernel in (cross_entropy_, None):
        loss, _ = cross_entropy.linear_cross_entropy(*leaves, torch.arange(9), kernel, weights)
        results.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    for ours, theirs in zip(*results, strict=True):
        largest = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCES[dtype] * largest)
