"""GLUE metrics against scikit-learn and scipy, and the format of submissions."""

import numpy as np
import pytest

from mae_lm_fairseq.finetuning.sentences.glue_files import submission
from mae_lm_fairseq.finetuning.sentences.metrics import compute_metrics
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, predictions

stats = pytest.importorskip("scipy.stats")
sklearn = pytest.importorskip("sklearn.metrics")


def measured(task, predicted, true):
    return compute_metrics(TASKS[task].metrics, predicted, true)


def test_metrics_on_random_predictions():
    generator = np.random.default_rng(0)
    for _ in range(20):
        predicted, true = generator.integers(0, 2, (2, 50))
        assert measured("CoLA", predicted, true) == {"matthews": 100 * sklearn.matthews_corrcoef(true, predicted)}
        wanted = {
            "f1": 100 * sklearn.f1_score(true, predicted),
            "accuracy": 100 * sklearn.accuracy_score(true, predicted),
        }
        assert measured("MRPC", predicted, true) == measured("QQP", predicted, true) == wanted
        predicted, true = generator.normal(size=(2, 50))
        pearson, spearman = stats.pearsonr(predicted, true)[0], stats.spearmanr(predicted, true)[0]
        assert measured("STS-B", predicted, true) == {
            "pearson": 100 * pearson,
            "spearman": 100 * spearman,
        }


def test_constant_predictions_and_scores_have_no_correlation():
    assert measured("STS-B", np.full(9, 2.5), np.arange(9)) == {"pearson": 0.0, "spearman": 0.0}
    assert measured("STS-B", np.arange(9), np.full(9, 2.5)) == {"pearson": 0.0, "spearman": 0.0}
    assert measured("CoLA", np.zeros(9, int), np.arange(9) % 2) == {"matthews": 0.0}
    assert measured("MRPC", np.zeros(9, int), np.arange(9) % 2)["f1"] == 0.0


def test_submissions_name_rows_and_labels():
    logits = np.array([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    text = submission(TASKS["MNLI"], predictions(TASKS["MNLI"], logits))
    assert text == "index\tprediction\n0\tneutral\n1\tentailment\n2\tcontradiction\n"
    assert submission(TASKS["SST-2"], [1, 0]) == "index\tprediction\n0\t1\n1\t0\n"
    scores = predictions(TASKS["STS-B"], np.array([[0.5], [1.2], [-0.1]]))
    assert scores.tolist() == pytest.approx([2.5, 6.0, -0.5])
    assert submission(TASKS["STS-B"], scores) == "index\tprediction\n0\t2.500\n1\t5.000\n2\t0.000\n"
