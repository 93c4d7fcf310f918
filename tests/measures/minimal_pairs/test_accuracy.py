"""Accuracies on minimal pairs and their intervals."""

import numpy as np
import pytest

from mae_lm_fairseq.measures.minimal_pairs.files import Pair, Paradigm
from mae_lm_fairseq.measures.minimal_pairs.scores import TIE, accuracies


def paradigm(name, field, count):
    return Paradigm(name, field, [Pair("good", "bad")] * count)


def test_ties_count_one_half():
    scores = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, TIE / 2], [TIE * 2, 0.0]])
    found = accuracies([paradigm("a", "x", 5)], scores)["overall"]
    assert (found["accuracy"], found["pairs"], found["ties"]) == (3 / 5, 5, 2)


def test_paradigms_count_the_same():
    paradigms = [paradigm("a", "x", 1), paradigm("b", "y", 3), paradigm("c", "y", 2)]
    scores = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0]], dtype=float)
    found = accuracies(paradigms, scores)
    of = {kind: {name: row["accuracy"] for name, row in found[kind].items()} for kind in ("paradigms", "fields")}
    assert of["paradigms"] == pytest.approx({"a": 1, "b": 1 / 3, "c": 1 / 2})
    assert of["fields"] == pytest.approx({"x": 1, "y": 5 / 12})
    assert found["overall"]["accuracy"] == pytest.approx(11 / 18)
    assert (found["fields"]["y"]["pairs"], found["fields"]["y"]["ties"]) == (5, 2)


def test_intervals_are_those_of_resampled_pairs():
    """The standard error of a paradigm's accuracy is the binomial one."""
    rows = np.random.default_rng(0).random((2, 400)) < 0.7
    scores = np.stack([rows.reshape(-1), ~rows.reshape(-1)], 1).astype(float)
    found = accuracies([paradigm("a", "x", 400), paradigm("b", "x", 400)], scores)
    for row, count in ((found["paradigms"]["a"], 400), (found["overall"], 800)):
        error = (row["accuracy"] * (1 - row["accuracy"]) / count) ** 0.5
        assert row["low"] < row["accuracy"] < row["high"]
        assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert accuracies([paradigm("a", "x", 400), paradigm("b", "x", 400)], scores) == found
