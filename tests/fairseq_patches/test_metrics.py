"""Updates that fail (tests/fault_injection has the checkpoints), and undefined correlations."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions import sentence_prediction
from fairseq.trainer import Trainer
from scipy import stats

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches import metrics
from mae_lm_fairseq.utils.errors import UserError
from tests.support.finetuning import finetune, write_sentences
from tests.support.training import batches, parse, set_up

mae_lm_fairseq.register()

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

    def step(trainer, samples, raise_oom):
        assert raise_oom
        if isinstance(end, Exception):
            raise end
        return end

    def error_message(ending):
        nonlocal end
        end = ending
        with pytest.raises(UserError) as caught:
            metrics._train_step(step, trainer, [None, None])
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        assert message.startswith("update 121: ")
        return message

    end = None
    error_message.passes = lambda logged: metrics._train_step(lambda *_, **__: logged, trainer, [None])
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
    message = error_message(FloatingPointError(OVERFLOW))
    assert "use --bf16 --finetune-from-model checkpoints/checkpoint_last.pt with another --save-dir" in message


def test_clipping_that_is_off_cannot_be_lowered(error_message):
    assert "--clip-norm 2 or another seed" in error_message(DIVERGED[0])


def test_out_of_memory(error_message):
    message = error_message(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"))
    assert message == (
        "update 121: CUDA out of memory. Tried to allocate 2.00 GiB; the checkpoints in checkpoints are valid. A batch "
        "has 16 sequences: use a smaller --batch-size or --max-tokens and a larger --update-freq, or "
        "--checkpoint-activations"
    )


def test_an_update_that_does_not_fit_ends_the_run(data_bin, monkeypatch):
    """fairseq left it out, and went on with the next one."""
    cfg, task, model, criterion = set_up(data_bin)
    task.load_dataset("train")
    trainer, [batch, *_] = Trainer(cfg, task, model, criterion), batches(task)
    trainer.begin_epoch(1)

    def spill(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(criterion, "forward", spill)
    with pytest.raises(UserError, match=r"^update 1: CUDA out of memory; "):
        trainer.train_step([batch])


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


UNDEFINED = {"one row": ([0.5], [0.4]), "predictions": ([0.5, 0.5], [0, 1]), "scores": ([0, 1], [0.5, 0.5])}


@pytest.mark.parametrize("kind", UNDEFINED)
def test_undefined_correlations_are_zero(kind):
    found = sentence_prediction.pearson_and_spearman(*map(np.array, UNDEFINED[kind]))
    assert found == {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}


def test_other_correlations_are_those_of_scipy():
    predicted, true = np.random.default_rng(0).random((2, 2))
    found = sentence_prediction.pearson_and_spearman(predicted, true)
    assert found["pearson"] == stats.pearsonr(predicted, true).statistic
    assert found["spearmanr"] == stats.spearmanr(predicted, true).statistic


def test_validation_with_a_last_batch_of_one_row(data_bin, tmp_path):
    data = write_sentences(tmp_path / "data", data_bin / "dict.txt", classes=1, size=9)
    options = ["--regression-target", "--report-pearson-and-spearman", "--batch-size-valid", 8, "--max-update", 1]
    metric = ["--best-checkpoint-metric", "pearson_and_spearman", "--maximize-best-checkpoint-metric"]
    saved = finetune(data, tmp_path / "save", *options, *metric, classes=1)
    assert -100 <= saved["extra_state"]["best"] <= 100
