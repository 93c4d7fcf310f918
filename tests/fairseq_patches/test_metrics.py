"""Correlations of a validation batch; each test fails without the patch."""

import numpy as np
import pytest
from fairseq.criterions import sentence_prediction
from scipy import stats

import mae_lm_fairseq
from tests.support.finetuning import finetune, write_sentences

mae_lm_fairseq.register()

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
