"""fairseq's two fp16 optimizers on our model's parameters: building, stepping, saving and restoring."""

import itertools
import math

import pytest
import torch
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer

from tests.support.comparisons import assert_equal
from tests.support.training import batches, make_update, set_up

LR, UPDATES = 1e-2, 3
OPTIONS = ["--adam-betas", "(0.9, 0.98)", "--adam-eps 1e-06 --weight-decay 0.1"]
OPTIONS += ["--lr", LR, "--fp16 --fp16-init-scale 4"]

# fused_adamw refuses MemoryEfficientFP16Optimizer: tests/optim/test_fused_adamw.py.
PAIRS = [(FP16Optimizer, "adam"), (FP16Optimizer, "fused_adamw"), (MemoryEfficientFP16Optimizer, "adam")]
each_pair = pytest.mark.parametrize(("wrapper", "name"), PAIRS, ids=lambda value: getattr(value, "__name__", value))


@pytest.fixture
def build(data_bin, monkeypatch):
    """Return ``build(wrapper, name)``: parameters and their optimizer, in float32 if there is no wrapper."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU

    def build(wrapper, name, weights=(), options=()):
        cfg, _, model, _ = set_up(data_bin, *OPTIONS, "--optimizer", name, *options)
        parameters = list((model.half() if wrapper else model).parameters())
        for parameter, weight in zip(parameters, weights, strict=False):
            parameter.data.copy_(weight.data)
        optimizer = wrapper.build_optimizer(cfg, parameters) if wrapper else build_optimizer(cfg.optimizer, parameters)
        return parameters, optimizer

    return build


def train(parameters, optimizer, updates=range(UPDATES)):
    """Run updates with gradients that depend only on the update number, in the call order of the trainer."""
    for update in updates:
        generator = torch.Generator().manual_seed(update)
        optimizer.zero_grad()
        optimizer.backward(sum((parameter * gradient(parameter, generator)).sum() for parameter in parameters))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(2.0)
        optimizer.step()


def gradient(parameter, generator):
    """Return gradients of magnitude 0.5 to 1.5, equal in both precisions.

    Smaller ones would have few significant digits in float16 after clipping.
    """
    sign = torch.randn(parameter.shape, generator=generator).sign()
    return (sign * (0.5 + torch.rand(parameter.shape, generator=generator))).half().to(parameter)


@pytest.mark.parametrize("options", [[], ["--fp16-no-flatten-grads"]])
def test_fused_adamw_equals_adam_under_fp16(build, options):
    """After 40 updates, with an eps as large as the clipped gradients, so that its place matters."""
    exact = []
    for name in ("adam", "fused_adamw"):
        parameters, optimizer = build(FP16Optimizer, name, options=["--adam-eps 0.01", *options])
        train(parameters, optimizer, range(40))
        exact.append(torch.cat([weights.flatten() for weights in optimizer.state_dict()["fp32_params"]]))
    torch.testing.assert_close(*exact, rtol=0, atol=40 * 2**-23)  # each update rounds weights between 1 and 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mae_lm_tiny", "mae_lm_roberta_tiny"])
def test_200_updates_learn_what_float32_learns(data_bin, monkeypatch, arch):
    """The whole model is in float16, as with --fp16 on a GPU; only the fused kernels differ."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    half, single = (losses(data_bin, arch, wrapper) for wrapper in (FP16Optimizer, None))
    assert single[-1] < single[0] - 0.3
    assert not half.equal(single)
    # Same batches, masks and dropout; computations keep 11 bits. The difference observed after 200 updates is 0.5 %.
    torch.testing.assert_close(half, single, rtol=0.01, atol=0)


def losses(data_bin, arch, wrapper) -> torch.Tensor:
    """Return the mean loss in bits per token, over each 20 of 200 updates."""
    cfg, task, model, criterion = set_up(
        data_bin, *OPTIONS, "--lr 0.005 --encoder-embed-dim 64 --optimizer adam", arch=arch
    )
    parameters = list((model.half() if wrapper else model).train().parameters())
    optimizer = wrapper.build_optimizer(cfg, parameters) if wrapper else build_optimizer(cfg.optimizer, parameters)
    logged = []
    for number, batch in enumerate(itertools.islice(endless(task), 200)):
        torch.manual_seed(number)
        logged.append(make_update(model, criterion, optimizer, batch) / math.log(2))
    return torch.tensor(logged).view(10, 20).mean(1)


def endless(task):
    """Yield the batches of one epoch after the other."""
    return itertools.chain.from_iterable(batches(task, epoch=epoch) for epoch in itertools.count(1))


@each_pair
def test_state_is_saved_and_restored(build, wrapper, name, tmp_path):
    """The state is restored exactly from a file, and the next update is the same."""
    parameters, optimizer = build(wrapper, name)
    train(parameters, optimizer)
    optimizer.scaler.loss_scale = 8.0
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copies, restored = build(wrapper, name, weights=parameters)
    restored.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert restored.scaler.loss_scale == 8.0
    assert_same_state(optimizer.state_dict()["state"], restored.state_dict()["state"], parameters)
    train(parameters, optimizer, [UPDATES])
    train(copies, restored, [UPDATES])
    assert_equal(copies, parameters)


@pytest.mark.parametrize("options", [[], ["--fp16-no-flatten-grads"]])
def test_float32_weights_are_saved_and_restored(build, options, tmp_path):
    parameters, optimizer = build(FP16Optimizer, "adam", options=options)
    train(parameters, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    _, restored = build(FP16Optimizer, "adam", weights=parameters, options=options)
    _, without = build(FP16Optimizer, "adam", weights=parameters, options=options)
    _, changed = build(FP16Optimizer, "adam", weights=[2 * parameter for parameter in parameters], options=options)
    without.load_state_dict({name: value for name, value in state.items() if name != "fp32_params"})
    for other in (restored, changed):
        other.load_state_dict(state)
    exact, loaded, rounded, doubled = (
        torch.cat([weights.flatten() for weights in each_optimizer.state_dict()["fp32_params"]])
        for each_optimizer in (optimizer, restored, without, changed)
    )
    assert torch.equal(loaded, exact)
    assert torch.equal(rounded, exact.half().float())
    assert not torch.equal(rounded, exact)
    assert torch.equal(doubled, 2 * rounded)


def assert_same_state(saved, restored, parameters):
    """Check that nothing is missing and nothing was cast to the parameters' type."""
    assert saved.keys() == restored.keys()
    assert sum(state["exp_avg"].numel() for state in saved.values()) == sum(p.numel() for p in parameters)
    for key, state in saved.items():
        assert state.keys() == restored[key].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert state["step"] == restored[key]["step"] == UPDATES
        for name in ("exp_avg", "exp_avg_sq"):
            assert state[name].dtype == restored[key][name].dtype == torch.float32
            assert torch.equal(state[name], restored[key][name])
