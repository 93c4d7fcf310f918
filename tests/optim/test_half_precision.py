"""fairseq's two fp16 optimizers on our model's parameters: built, stepped, saved and restored."""

import itertools
import math

import pytest
import torch
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer, build_optimizer

from tests.support.training import batches, set_up

LR, UPDATES = 1e-2, 3
EPSILON = 2**-11  # the relative error of rounding to float16
OPTIONS = ["--adam-betas", "(0.9, 0.98)", "--adam-eps", 1e-6, "--weight-decay", 0.1]
OPTIONS += ["--lr", LR, "--fp16", "--fp16-init-scale", 4]

# fused_adamw refuses the second one: tests/optim/test_fused_adamw.py.
PAIRS = [(FP16Optimizer, "adam"), (FP16Optimizer, "fused_adamw"), (MemoryEfficientFP16Optimizer, "adam")]
each_pair = pytest.mark.parametrize(("wrapper", "name"), PAIRS, ids=lambda value: getattr(value, "__name__", value))


@pytest.fixture
def build(data_bin, monkeypatch):
    """``build(wrapper, name)`` makes the model's parameters and their optimizer; without wrapper in float32."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU

    def build(wrapper, name, weights=()):
        cfg, _, model, _ = set_up(data_bin, *OPTIONS, "--optimizer", name)
        parameters = list((model.half() if wrapper else model).parameters())
        for parameter, weight in zip(parameters, weights, strict=False):
            parameter.data.copy_(weight.data)
        optimizer = wrapper.build_optimizer(cfg, parameters) if wrapper else build_optimizer(cfg.optimizer, parameters)
        return parameters, optimizer

    return build


def train(parameters, optimizer, updates=range(UPDATES)):
    """Updates on gradients that depend on the number of the update alone, in the order of the trainer's calls."""
    for update in updates:
        generator = torch.Generator().manual_seed(update)
        optimizer.zero_grad()
        optimizer.backward(sum((parameter * gradient(parameter, generator)).sum() for parameter in parameters))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(2.0)
        optimizer.step()


def gradient(parameter, generator):
    """Away from zero, where float16 has few digits after clipping, and the same in either precision."""
    sign = torch.randn(parameter.shape, generator=generator).sign()
    return (sign * (0.5 + torch.rand(parameter.shape, generator=generator))).half().to(parameter)


@each_pair
def test_steps_as_in_float32(build, wrapper, name):
    start, _ = build(None, name)
    half, single = build(wrapper, name), build(None, name)
    train(*half)
    train(*single)
    # At the start and at the end a weight is rounded to float16; without a copy in float32, in each update.
    roundings = 2 if wrapper is FP16Optimizer else 1 + UPDATES
    for before, ours, exact in zip(start, half[0], single[0], strict=True):
        assert ours.dtype == torch.float16
        assert (exact - before).abs().mean() > LR
        # Adam's way of LR in each update, from gradients that clipping rounds to 11 bits.
        atol = UPDATES * LR * 2 * EPSILON
        torch.testing.assert_close(ours.float(), exact, rtol=roundings * EPSILON, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mae_lm_tiny", "mae_lm_roberta_tiny"])
def test_200_updates_learn_what_float32_learns(data_bin, monkeypatch, arch):
    """The whole model in float16, as --fp16 has it on a GPU; only the fused kernels are other ones here."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    half, single = (losses(data_bin, arch, wrapper) for wrapper in (FP16Optimizer, None))
    assert single[-1] < single[0] - 0.3
    assert not half.equal(single)
    # Same batches, masks and dropout; what is computed keeps 11 bits, and after 200 updates 0.5 % were seen.
    torch.testing.assert_close(half, single, rtol=0.01, atol=0)


def losses(data_bin, arch, wrapper) -> torch.Tensor:
    """The mean loss in bits a token of each 20 of 200 updates."""
    cfg, task, model, criterion = set_up(
        data_bin, *OPTIONS, "--lr", 5e-3, "--encoder-embed-dim", 64, "--optimizer", "adam", arch=arch
    )
    task.load_dataset("train")
    parameters = list((model.half() if wrapper else model).train().parameters())
    optimizer = wrapper.build_optimizer(cfg, parameters) if wrapper else build_optimizer(cfg.optimizer, parameters)
    told = []
    for update, batch in enumerate(itertools.islice(endless(task), 200)):
        torch.manual_seed(update)
        optimizer.zero_grad()
        loss, size, _ = criterion(model, batch)
        optimizer.backward(loss)
        optimizer.multiply_grads(1 / size)
        optimizer.clip_grad_norm(2.0)
        optimizer.step()
        told.append(loss.item() / size / math.log(2))
    return torch.tensor(told).view(10, 20).mean(1)


def endless(task):
    """The batches of epoch after epoch."""
    return itertools.chain.from_iterable(batches(task, epoch=epoch) for epoch in itertools.count(1))


@each_pair
def test_state_is_saved_and_restored(build, wrapper, name, tmp_path):
    """Through a file, exactly, and the next update is the one that would have followed."""
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
    # FP16Optimizer's copies in float32 are not saved: they begin again with what float16 has kept of them, weights that
    # were at most LR larger.
    roundings = 2 if wrapper is FP16Optimizer else 0
    torch.testing.assert_close(copies, parameters, rtol=roundings * EPSILON, atol=roundings * EPSILON * LR)


def assert_same_state(saved, restored, parameters):
    """Nothing is missing, or was cast to the parameters' type on the way."""
    assert saved.keys() == restored.keys()
    assert sum(state["exp_avg"].numel() for state in saved.values()) == sum(p.numel() for p in parameters)
    for key, state in saved.items():
        assert state.keys() == restored[key].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert state["step"] == restored[key]["step"] == UPDATES
        for name in ("exp_avg", "exp_avg_sq"):
            assert state[name].dtype == restored[key][name].dtype == torch.float32
            assert torch.equal(state[name], restored[key][name])
