"""Steps of fixed sizes: buffers, gradients and scales on a CPU, and a traced step in place of a captured one."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mae_lm_fairseq.core import dropout
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.graphs import GraphedStep
from mae_lm_fairseq.core.packing import batch_layout, pack, restore
from tests.core.test_fixed_sizes import NETWORKS, WIDTH, ragged_batch, sizes, training_network
from tests.support.comparisons import assert_equal
from tests.support.networks import MASK, PAD

WAITING = ("item", "_local_scalar_dense", "nonzero", "unique", "is_nonzero", "masked_select")
"""Operators that wait for a GPU, whose results' sizes or values the host needs."""


def small_network(name: str, probability: float) -> MaskedAutoencoder:
    return training_network(name, probability=probability, encoder_layers=2)


def batches_of_a_bucket(net: MaskedAutoencoder, number: int, kept: float = 0.2) -> list[tuple]:
    """Return several batches, of as many tokens as it takes to fill the same bucket."""
    by_bucket = {}
    for seed in range(200):
        fixed = sizes(kept=kept).pad_batch(*ragged_batch(seed, kept=kept))
        layout = batch_layout(fixed.tokens, fixed.target.ne(PAD), PAD, MASK, needs=net.needs(), width=WIDTH)
        targets = pack(fixed.target, layout.predicted)
        same = by_bucket.setdefault(fixed.bucket, [])
        same.append((fixed.tokens, tuple(layout), targets))
        if len(same) == number:
            return same
    raise AssertionError("no bucket has enough batches")


def step_of(net: MaskedAutoencoder):
    def step(batch: tuple) -> tuple[Tensor, Tensor]:
        tokens, layout, targets = batch
        layout = restore(layout)
        return net.lm_head.loss(net.predicted_states(tokens, layout), targets, layout)

    return step


def gradients_of(net: MaskedAutoencoder) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in net.parameters()]


class Recorded(TorchDispatchMode):
    """Records every operator with the sizes of its tensors, and all that is no tensor."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        leaves = pytree.tree_leaves((args, kwargs))
        described = [(leaf.shape, leaf.stride()) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.calls.append((str(operator), described))
        return operator(*args, **(kwargs or {}))


@pytest.fixture
def traceable_dropout(monkeypatch):
    """Draw the words of dropout by an operator that fx can write, unlike ``random_.from``."""

    def words(number: int) -> Tensor:
        limits = torch.iinfo(torch.int64)
        return torch.randint(limits.min, limits.max, (number,))

    monkeypatch.setattr(dropout, "random_words", words)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_batches_of_a_bucket_run_the_same_operators(name, probability, traceable_dropout):
    """A trace of the first batch, replayed on the others, is bit-equal: what a graph would do."""
    net = small_network(name, probability)
    step = step_of(net)
    parameters = list(net.parameters())
    batches = batches_of_a_bucket(net, 2)

    def gradients(leaves: list[Tensor], constants: list, structure: pytree.TreeSpec) -> list[Tensor]:
        tensors = iter(leaves)
        filled = [next(tensors) if constant is Tensor else constant for constant in constants]
        loss, correct = step(pytree.tree_unflatten(filled, structure))
        return [loss, correct, *torch.autograd.grad(loss, parameters)]

    calls = []
    expected = []
    inputs = []
    for batch in batches:
        leaves, structure = pytree.tree_flatten(batch)
        inputs.append([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        constants = [Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        torch.manual_seed(5)
        with Recorded() as recorded:
            expected.append(gradients(inputs[-1], constants, structure))
        calls.append(recorded.calls)
    assert calls[0] == calls[1]
    assert not [name for name, _ in calls[0] if any(waiting in name for waiting in WAITING)]

    traced = make_fx(lambda tensors: gradients(tensors, constants, structure), tracing_mode="real")(inputs[0])
    for tensors, values in zip(inputs, expected, strict=True):
        torch.manual_seed(5)
        with torch.no_grad():
            replayed = traced(tensors)
        assert_equal(replayed, values)


def test_gradients_are_added_and_scaled():
    net = small_network("mae_lm", 0.1)
    first, second = batches_of_a_bucket(net, 2)
    step = step_of(net)
    graphed = GraphedStep(step, net.parameters())
    torch.manual_seed(1)
    for batch in (first, second):
        (8 * step(batch)[0]).backward()
    expected = gradients_of(net)
    net.zero_grad()
    torch.manual_seed(1)
    losses = [graphed("bucket", batch, scale=8.0)[0] for batch in (first, second)]
    assert_equal(gradients_of(net), expected)
    torch.manual_seed(1)
    assert [step(batch)[0].item() for batch in (first, second)] == [loss.item() for loss in losses]


def test_a_step_without_graph_before_and_after_adds_its_gradients():
    net = small_network("mae_lm", 0.0)
    batches = batches_of_a_bucket(net, 3)
    step = step_of(net)
    graphed = GraphedStep(step, net.parameters())
    for batch in batches:
        step(batch)[0].backward()
    expected = gradients_of(net)
    net.zero_grad()
    step(batches[0])[0].backward()
    graphed("bucket", batches[1])
    step(batches[2])[0].backward()
    assert_equal(gradients_of(net), expected)


def test_gradients_begin_at_zero_after_zero_grad():
    net = small_network("mae_lm", 0.0)
    [batch] = batches_of_a_bucket(net, 1)
    graphed = GraphedStep(step_of(net), net.parameters())
    graphed("bucket", batch)
    expected = gradients_of(net)
    for set_to_none in (True, False):
        net.zero_grad(set_to_none)
        graphed("bucket", batch)
        assert_equal(gradients_of(net), expected)


def test_a_batch_of_another_bucket_is_refused():
    net = small_network("mae_lm", 0.0)
    [batch] = batches_of_a_bucket(net, 1)
    graphed = GraphedStep(step_of(net), net.parameters())
    graphed("bucket", batch)
    tokens, layout, targets = batch
    with pytest.raises(ValueError, match="bucket"):
        graphed("bucket", (tokens, layout, targets[1:]))
