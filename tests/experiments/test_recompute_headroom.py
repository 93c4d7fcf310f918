"""The recomputation of headroom's tasks and verdicts: values by hand, and agreement with headroom.py."""

import math

import numpy as np
import pytest
from experiments import recompute_headroom


def test_values_by_hand():
    """The statistics are those of the rule.

    With two degrees of freedom p of t is 1 - t / sqrt(2 + t^2), and the 95th percentile is 2.919986.
    """
    values = np.array([1.0, 2.0, 3.0])
    assert recompute_headroom.p_value(values) == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)
    assert recompute_headroom.p_value(np.array([0.3, 0.3])) == 1.0
    half = 2.919985580 / math.sqrt(3)
    assert recompute_headroom.interval_90(values) == pytest.approx([2 - half, 2 + half], abs=1e-8)
    assert recompute_headroom.holm({"a": 0.03, "b": 0.01, "c": 0.04, "d": 0.9}) == pytest.approx(
        {"a": 0.09, "b": 0.04, "c": 0.09, "d": 0.9}, abs=1e-12
    )
    assert recompute_headroom.sampling_deviation("RTE", 50.0) == pytest.approx(50 / math.sqrt(277), abs=1e-12)
    assert recompute_headroom.sampling_deviation("STS-B", 50.0) == pytest.approx(75 / math.sqrt(1500), abs=1e-12)


def test_the_chosen_rate_is_the_lowest_of_a_tie():
    by_rate = {
        1e-3: {0: (60.0, 1.0), 1: (62.0, 2.0)},
        3e-4: {0: (62.0, 3.0), 1: (60.0, 4.0)},
        1e-4: {0: (50.0, 5.0), 1: (51.0, 6.0)},
    }
    assert recompute_headroom.chosen_rate(by_rate) == 3e-4


def test_at_most_two_measures_of_a_task_are_chosen():
    deviations = {"UPOS": 9, "UPOS, 500": 8, "UPOS, 100": 7, "RTE": 1, "SST-2": 3, "CoLA": 2}
    candidates = {measure: {"deviations": value} for measure, value in deviations.items()}
    assert recompute_headroom.choose(candidates) == ["UPOS", "UPOS, 500", "SST-2", "CoLA"]


def test_scores_are_read_at_the_latest_updates():
    measures = {
        "UPOS, 500": {
            "9000": {"accuracy at 0.0001": 1.0, "test_accuracy at 0.0001": 2.0},
            "10000": {"accuracy at 0.0001": 3.0, "test_accuracy at 0.0001": 4.0, "loss at 0.0001": 5.0},
        },
        "loss": {"10000": {"loss": 1.0}},
    }
    results = {"runs": [{"model": "MLM", "seed": 7, "measures": measures}]}
    assert recompute_headroom.scores_of(results) == {("MLM", "UPOS, 500"): {0.0001: {7: (3.0, 4.0)}}}
