"""Error messages for non-finite losses and gradients; tests/fault_injection checks that checkpoints survive."""

import math
from types import SimpleNamespace

import pytest
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches import divergence
from mae_lm_fairseq.utils.errors import UserError
from tests.support.training import parse

OVERFLOW = "Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, ..."
WORKERS = (
    "Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp. Or are you mixing up "
    "different generation of GPUs in training?\n{line}\ngrad_norm across the workers:\nrank   0 = 0.5\n"
    "rank   1 = {norm}\n"
)


@pytest.fixture
def error_message():
    """Return a function: the error message of an update that raises ``end`` or, if it is a dictionary, logs it."""
    cfg = parse("data-bin", "--task", "masked_lm", "--arch", "roberta", "--lr", "5e-4", "--batch-size", "16")
    trainer = SimpleNamespace(
        cfg=cfg, data_parallel_world_size=4, get_num_updates=lambda: 120, get_lr=lambda: 5e-4, spec=Trainer
    )

    def step(trainer, samples):
        if isinstance(end, Exception):
            raise end
        return end

    def error_message(ending):
        nonlocal end
        end = ending
        with pytest.raises(UserError) as caught:
            divergence._train_step(step, trainer, [None, None])
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        assert message.startswith("update 121: ")
        return message

    end = None
    error_message.passes = lambda logged: divergence._train_step(lambda *_: logged, trainer, [None])
    return error_message


DIVERGED = [{"loss": math.nan}, {"loss": math.inf, "sample_size": 2.0}]


@pytest.mark.parametrize("end", [FloatingPointError("gradients are Nan/Inf"), *DIVERGED])
def test_message_names_the_settings_and_the_remedies(error_message, end):
    message = error_message(end)
    assert "the loss or a gradient is not finite" in message
    assert "lr 0.0005, 4 x 2 x 16 sequences" in message
    for option in ("--lr", "--warmup-updates", "--update-freq", "--clip-norm"):
        assert option in message


def test_float16(error_message):
    assert "use --bf16 --reset-optimizer" in error_message(FloatingPointError(OVERFLOW))


def test_several_processes(error_message):
    """fairseq mistakes non-finite gradient norms for an inconsistency between processes."""
    line = "-" * 80
    assert "is not finite" in error_message(FloatingPointError(WORKERS.format(norm="nan", line=line)))
    assert error_message(FloatingPointError(WORKERS.format(norm="0.7", line=line))).startswith(
        "update 121: gradients are inconsistent between workers"
    )


@pytest.mark.parametrize("logged", [{"loss": 4.5}, {}, None, {"loss": math.nan, "sample_size": 0.0}])
def test_finite_numbers_pass(error_message, logged):
    assert error_message.passes(logged) is logged
