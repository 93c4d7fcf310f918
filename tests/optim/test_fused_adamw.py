"""``fused_adamw`` against fairseq's ``adam`` and against the formula."""

import pytest
import torch
from fairseq.optim import build_optimizer
from omegaconf import OmegaConf

from tests.support.comparisons import assert_close, assert_equal
from tests.support.refusals import refused

SETTINGS = {"lr": [1e-2], "adam_betas": "(0.9, 0.98)", "weight_decay": 0.1, "adam_eps": 1e-6}


def optimizer(name, parameters, **changes):
    extra = {"use_old_adam": True, "fp16_adam_stats": False, "tpu": False} if name == "adam" else {}
    return build_optimizer(OmegaConf.create({"_name": name, **SETTINGS, **extra, **changes}), parameters)


def trajectory(name, steps=20, scale=1.0, weights=1.0, **changes):
    """Return the parameter after each step, with gradients drawn from a seed."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(weights * torch.randn(50, generator=generator))
    chosen = optimizer(name, [parameter], **changes)
    states = []
    for _ in range(steps):
        parameter.grad = scale * torch.randn(50, generator=generator)
        chosen.step()
        states.append(parameter.detach().clone())
    return torch.stack(states)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-6, 1e-8])
def test_equals_fairseqs_adam(scale):
    """Also where eps, 1e-6, is as large as the gradients. From small weights, whose own rounding does not hide it."""
    fused, theirs = (trajectory(name, steps=60, scale=scale, weights=0.01) for name in ("fused_adamw", "adam"))
    assert_close(fused, theirs, 1e-6)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        *(("clip_grad_norm", max_norm) for max_norm in (0.0, 0.5, 100.0)),
        *(("multiply_grads", factor) for factor in (1 / 3, torch.tensor(1 / 3, dtype=torch.float64))),
    ],
)
def test_changes_gradients_bit_by_bit_as_fairseq(method, value):
    results = []
    for name in ("fused_adamw", "adam"):
        generator = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.ones(size)) for size in (3, 50, 7)]
        change = getattr(optimizer(name, parameters), method)
        change(value)  # none has a gradient
        for parameter in parameters[1:]:  # the first never has one
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        norm = change(value)
        results.append([*(parameter.grad for parameter in parameters[1:]), *([] if norm is None else [norm])])
    assert_equal(*results)


def test_a_parameter_without_gradients_is_not_counted_in_a_group_of_its_own():
    """A layer that is frozen for ten updates, with a learning rate of its own, then trains as with fairseq's adam."""
    results = []
    for name, options in (("fused_adamw", {"layer_lr_decay": 0.5}), ("adam", {})):
        frozen, trained = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        frozen.param_group = 1
        chosen = optimizer(name, [frozen, trained], **options)
        chosen.set_lr(1e-2 if name == "adam" else 2e-2)
        for update in range(20):
            trained.grad, frozen.grad = torch.full((3,), 1e-6), torch.full((3,), 1e-6) if update >= 10 else None
            chosen.step()
        results.append(frozen.detach())
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
    assert (results[0] < 0.97).all()


@pytest.mark.parametrize(
    "change", [{"lr": [2e-2]}, {"adam_betas": "(0.8, 0.98)"}, {"weight_decay": 0.0}, {"adam_eps": 0.1}]
)
def test_every_option_changes_the_result(change):
    assert not torch.equal(trajectory("fused_adamw"), trajectory("fused_adamw", **change))


def test_options_are_those_of_the_resumed_run():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.param_group = 1
    first, second = (
        optimizer("fused_adamw", [parameter], layer_lr_decay=decay, weight_decay=decay, adam_betas=f"({decay}, 0.98)")
        for decay in (0.9, 0.8)
    )
    parameter.grad = torch.ones(3)
    first.step()
    second.load_state_dict(first.state_dict())
    [group] = second.param_groups
    assert (group["lr_scale"], group["weight_decay"], group["betas"]) == (0.8, 0.8, (0.8, 0.98))
    assert second.optimizer.state[parameter]["step"] == 1


@pytest.mark.parametrize("name", ["fused_adamw", "adam"])
def test_a_resumed_training_is_the_uninterrupted_one(name):
    """Bit by bit; from a state of fairseq's adam, within rounding. eps is as large as the gradients."""
    whole = trajectory("fused_adamw", scale=1e-6)
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50, generator=generator))
    chosen = optimizer(name, [parameter])
    for update in range(20):
        if update == 10:
            saved = chosen.state_dict()
            chosen = optimizer("fused_adamw", [parameter])
            chosen.load_state_dict(saved)
        parameter.grad = 1e-6 * torch.randn(50, generator=generator)
        chosen.step()
    assert chosen.param_groups[0]["eps"] == 1e-6
    assert_close(parameter.detach(), whole[-1], 0 if name == "fused_adamw" else 1e-6)


def test_the_learning_rate_is_that_of_the_checkpoint():
    """The scheduler ``reduce_lr_on_plateau`` sets it to 0 when it is created, and afterwards only multiplies it."""
    first, second = (optimizer("fused_adamw", [torch.nn.Parameter(torch.ones(3))]) for _ in range(2))
    first.set_lr(0.25)
    second.set_lr(0)
    second.load_state_dict(first.state_dict())
    assert second.get_lr() == 0.25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_refuses_parameters_in_half_precision(dtype):
    with refused("choose --optimizer adam"):
        optimizer("fused_adamw", [torch.nn.Parameter(torch.ones(3, dtype=dtype))])
