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
from tests.support.refusals import refused
from tests.support.training import batches, parse, set_up

mae_lm_fairseq.register()


def trainer_of(options=""):
    cfg = parse("data-bin", f"--task masked_lm --arch roberta --lr 5e-4 --batch-size 16 {options}")
    return SimpleNamespace(cfg=cfg, get_num_updates=lambda: 120)


def train_step(step, trainer=None):
    trainer = trainer or trainer_of()
    return metrics.stop_at_updates_that_fail.__wrapped__(lambda trainer, samples, raise_oom: step(), trainer, [None])


@pytest.mark.parametrize("logged", [{"loss": math.nan}, {"loss": math.inf, "sample_size": 2.0}])
def test_a_loss_that_is_not_finite_ends_the_run(logged):
    with refused(r"^update 121 .*(nan|inf)"):
        train_step(lambda: logged)


def test_a_gradient_that_is_not_finite_ends_the_run():
    def fail():
        raise FloatingPointError("gradients are Nan/Inf")

    with refused(r"^update 121 .*Nan/Inf"):
        train_step(fail)


@pytest.mark.parametrize("logged", [{"loss": 4.5}, {}, None, {"loss": math.nan, "sample_size": 0.0}])
def test_finite_numbers_pass(logged):
    assert train_step(lambda: logged) is logged


EMPTY = {"loss": math.nan, "sample_size": 0.0}


@pytest.mark.parametrize(("options", "most"), [("", 10), ("--max-update 200", 10), ("--max-update 3", 3)])
def test_a_training_that_predicts_nothing_ends(options, most):
    """Some updates without a predicted token are no error, as long as they are rare."""
    trainer = trainer_of(options)
    for logged in [EMPTY] * (most - 1) + [{"loss": 4.5, "sample_size": 8.0}] + [EMPTY] * (most - 1):
        train_step(lambda logged=logged: logged, trainer)
    with refused(f"last {most} updates.*--mask-function"):
        train_step(lambda: EMPTY, trainer)


def test_an_update_that_does_not_fit_ends_the_run(data_bin, monkeypatch):
    """fairseq left it out, and went on with the next one."""
    cfg, task, model, criterion = set_up(data_bin)
    trainer, [batch, *_] = Trainer(cfg, task, model, criterion), batches(task)
    trainer.begin_epoch(1)

    def spill(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(criterion, "forward", spill)
    with refused(r"^update 1 .*CUDA out of memory"):
        trainer.train_step([batch])


def test_other_errors_of_an_update_are_not_called_out_of_memory():
    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train_step(fail)


UNDEFINED = {"one row": ([0.5], [0.4]), "predictions": ([0.5, 0.5], [0, 1]), "scores": ([0, 1], [0.5, 0.5])}


@pytest.mark.parametrize("kind", UNDEFINED)
def test_undefined_correlations_are_zero(kind):
    correlations = sentence_prediction.pearson_and_spearman(*map(np.array, UNDEFINED[kind]))
    assert correlations == {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}


def test_other_correlations_are_those_of_scipy():
    predicted, true = np.random.default_rng(0).random((2, 2))
    correlations = sentence_prediction.pearson_and_spearman(predicted, true)
    assert correlations["pearson"] == stats.pearsonr(predicted, true).statistic
    assert correlations["spearmanr"] == stats.spearmanr(predicted, true).statistic
