"""Endpoints, tests of contrasts and the report of a study, from made-up results."""

import itertools
import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import ttest_1samp

from mae_lm_fairseq.study.contrasts import Outcome, corrected, flip, p_value, t_test
from mae_lm_fairseq.study.endpoints import ENDPOINTS, ValueBySeed
from mae_lm_fairseq.study.plan import Contrast, parse_plan
from mae_lm_fairseq.study.report import plot_contrasts

UNDEFINED = {"y": [None, 5, 3], "z": [None, None, None, 6]}
RUNS = [
    {10: {"x": [1, 5, 3.5], "n": 4, "m": 9}, 20: {"x": [1, 4, 2], "dev_x": [0, 2, 3], "n": 3, "m": 4, **UNDEFINED}},
    {10: {"x": [2, 5, 4.5], "n": 5, "m": None}, 20: {"x": [2, 6, 4], "dev_x": [4, 1, 3], "n": 1, "m": 5, **UNDEFINED}},
]
"""Two seeds, two checkpoints, three layers."""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("last", "x", [2, 4]),
        ("last", "n", [3, 1]),
        ("last_less_first_layer", "x", [1, 2]),
        ("last_less_best_layer", "x", [1, 2]),  # dev_x has its best mean at layer 0: 2 against 1.5
        ("last_less_best_layer", "dev_x", [3, -1]),
        ("last_less_best_layer", "y", [-2, -2]),
        ("mean_of_layers", "x", [2, 4]),
        ("mean_of_layers", "z", [6, 6]),
        ("end_less_best_checkpoint", "x", [-1.5, -0.5]),
        ("end_less_best_checkpoint", "n", [-1, -4]),
        ("end_less_best_checkpoint", "m", [0, 0]),  # the first checkpoint lacks a seed
    ],
)
def test_endpoints(name, value, expected):
    assert ENDPOINTS[name](ValueBySeed(RUNS, value)).tolist() == expected


def outcome(predicted="positive", values=(1.0, 1.1, 0.9), margin=None, primary=True, **figures):
    contrast = Contrast("name", "probe.x", "A", "B", predicted=predicted, margin=margin, primary=primary)
    values = dict(enumerate(values))
    return Outcome(contrast, values, **{"needed": (*values,), "p": 0.5, "sign_flip": 0.5} | figures)


def test_holms_correction():
    """By hand, for nine contrasts: 9 * 0.002, 8 * 0.003, 7 * 0.0305, also for 0.031, whose own product is lower."""
    outcomes = []
    for number, p in enumerate([0.003, 0.031, 0.0305, 0.002]):
        contrast = Contrast(str(number), "probe.x", "A", predicted="positive", primary=True)
        outcomes.append(Outcome(contrast, {1: 1.0, 2: 2.0}, (1, 2), p, p))
    unfinished = outcome(needed=range(5), p=0.0001)
    *complete, open_one, descriptive = corrected([*outcomes, unfinished, outcome(primary=False)], 9)
    assert [outcome.corrected for outcome in complete] == pytest.approx([0.024, 0.2135, 0.2135, 0.018])
    assert (open_one.corrected, descriptive.corrected) == (None, None)
    assert open_one.verdict == "open, 3 of 5 seeds"


NEAR, FAR = np.array([0.1, -0.1, 0.05, 0.0]), np.array([0.6, 0.5, 0.55, 0.65])


@pytest.mark.parametrize(
    ("values", "predicted", "popmean", "alternative"),
    [
        (NEAR, "equivalent", 0.5, "less"),
        (FAR, "equivalent", 0.5, "less"),
        (-FAR, "equivalent", -0.5, "greater"),
        (FAR, "not worse", -0.5, "greater"),
        (-FAR, "not worse", -0.5, "greater"),
        (FAR, "positive", 0, "two-sided"),
        (FAR, None, 0, "two-sided"),
    ],
)
def test_p_values(values, predicted, popmean, alternative):
    """The test of an equivalence is the larger one of two, here that against the nearer margin."""
    expected = ttest_1samp(values, popmean, alternative=alternative).pvalue
    assert p_value(values, predicted, 0.5, t_test) == pytest.approx(expected)


def test_equal_values_have_no_variance():
    assert t_test(np.ones(3), "two-sided") == 1


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_sign_flip_test_tries_all_signs(alternative):
    values = np.array([0.9, 0.3, -0.2, 0.6, 0.5])
    means = [np.mean(np.array(signs) * values) for signs in itertools.product((1, -1), repeat=5)]
    observed = values.mean() - 1e-12
    extreme = {
        "greater": np.mean([mean >= observed for mean in means]),
        "less": np.mean([mean <= values.mean() + 1e-12 for mean in means]),
    }
    extreme["two-sided"] = 2 * min(extreme.values())
    assert flip(values, alternative) == pytest.approx(extreme[alternative])
    assert flip(np.arange(1.0, 6.0), "two-sided") == 2 / 2**5


def test_sums_that_are_equal_but_for_rounding_count_as_extreme():
    values = np.array([5, -1, 3, -4, 6, -2])
    assert flip(values / 361, "two-sided") == flip(values, "two-sided") == flip(values / 7, "two-sided")


@pytest.mark.parametrize(
    ("predicted", "values", "corrected", "verdict"),
    [
        ("positive", (1.0, 1.1, 0.9), 0.01, "shown"),
        ("negative", (1.0, 1.1, 0.9), 0.01, "contradicted"),
        ("positive", (1.0, 1.1, 0.9), 0.06, "not shown"),
        ("negative", (-1.0, -1.1, -0.9), 0.01, "shown"),
        ("equivalent", (0.1, 0.0, -0.1), 0.01, "shown"),
        ("equivalent", (1.0, 1.1, 0.9), 0.99, "contradicted"),
        ("equivalent", (-1.0, -1.1, -0.9), 0.99, "contradicted"),
        ("equivalent", (-3.0, 3.0, 0.9), 0.4, "not shown"),
        ("not worse", (1.0, 1.1, 0.9), 0.01, "shown"),
        ("not worse", (1.0, 1.1, 0.9), 0.06, "not shown"),
        ("not worse", (-1.0, -1.1, -0.9), 0.99, "contradicted"),
    ],
)
def test_verdicts(predicted, values, corrected, verdict):
    margin = 0.5 if predicted in ("equivalent", "not worse") else None
    assert outcome(predicted, values, margin, corrected=corrected).verdict == verdict
    assert outcome(predicted, values, margin, primary=False).verdict == "descriptive"


PLAN = """
title = "Made up"
[data]
data_bin = "data-bin"
text = "valid.txt"
probe_train = "train"
probe_test = "test"
[train]
updates = 20
checkpoints = [10]
[rates]
halve = "probe.accuracy"
by = 0.5
[[model]]
name = "A"
arch = "mae_lm_tiny"
seeds = 2
learning_rates = [1e-3, 2e-3]
[[model]]
name = "B"
arch = "mae_lm_roberta_tiny"
seeds = 3
[[measure]]
kind = "loss"
[[measure]]
kind = "probe"
[[contrast]]
name = "P"
of = "probe.accuracy"
model = "A"
less = "B"
predicted = "positive"
primary = true
"""


def run_of(model, seed, rate=None, last=4.0):
    probe = {"10": {"accuracy": [1.0, 3.0]}, "20": {"accuracy": [1.0 + seed / 10, last + seed / 10]}}
    loss = {"10": {"loss": 5.0}, "20": {"loss": 4.0 + seed / 10}}
    seconds = {"training": 3600.0, "measuring": 0.0}
    return {
        "model": model,
        "learning_rate": rate,
        "seed": seed,
        "seconds": seconds,
        "commits": ["abc"],
        "machines": ["m"],
        "versions": ["torch 2"],
        "commands": [],
        "measures": {"loss": loss, "probe": probe},
    }


RESULTS = {
    "title": "Made up",
    "plan": PLAN,
    "files": {},
    "threads": 1,
    "rates": {
        "A": {"rate": 0.001, "is_known": True, "damage": -1.0},
        "B": {"rate": None, "is_known": True, "damage": None},
    },
    "runs": [
        *(run_of("A", 1, 1e-3, 6), run_of("A", 2, 1e-3, 7), run_of("A", 1, 2e-3, 5)),
        *(run_of("B", 1), run_of("B", 2), run_of("B", 3)),
    ],
}


def test_the_report_is_made_from_the_results_alone(tmp_path, report_of):
    report = report_of(json.loads(json.dumps(RESULTS)))
    # Seeds 1 and 2 are paired; seed 3 of B has no partner. The other learning rate does not count.
    assert "| last of probe.accuracy, A less B | positive | +2.5 [-3.85, +8.85] | +2, +3 |" in report
    assert "- A: 0.001, **half of the chosen one**; last layer at the end less its best checkpoint: -1.00" in report
    assert "| A | 0.002 | 1 | 4.1 | 5.1 |" in report  # loss, and what the contrast compares
    assert "| B | 4.2 ± 0.1 (4.1, 4.2, 4.3) |" in report
    assert "6 trainings, 6.0 core-hours" in report
    assert "| B | 5 ± 0 | 4.2 ± 0.1 |" in report  # the loss by updates
    for figure in ("loss.png", "probe.png", "contrasts.png"):
        assert f"({figure})" in report
        assert (tmp_path / figure).stat().st_size > 10_000


def test_a_value_that_a_model_lacks_is_not_tested_and_hides_nothing_else(report_of):
    runs = json.loads(json.dumps(RESULTS["runs"]))
    for run in runs:
        if run["model"] == "B":
            for values in run["measures"]["probe"].values():
                values["other"] = values.pop("accuracy")
    report = report_of(RESULTS | {"runs": runs})
    assert "Not tested, as not every seed of B has probe.accuracy: P." in report
    assert "| other, by layer |" in report


def test_a_contrast_that_is_not_defined_hides_nothing_else(report_of):
    """Without a number for the [MASK] of layer 0, as in a model where it joins later."""
    runs = json.loads(json.dumps(RESULTS["runs"]))
    for run in runs:
        if run["model"] == "A":
            for values in run["measures"]["probe"].values():
                values["accuracy"][0] = None
    other = 'name = "Q"\nof = "probe.accuracy"\nmodel = "A"\nendpoint = "last_less_first_layer"\npredicted = "positive"'
    plan = f"{PLAN}[[contrast]]\n{other}\nprimary = true\n"
    report = report_of(RESULTS | {"plan": plan, "runs": runs})
    assert "Not tested, as last_less_first_layer of probe.accuracy is not a number in two common seeds: Q." in report
    [p, corrected] = re.search(r"\| P \|.*\| \+2, \+3 \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", report).groups()
    assert float(corrected) == pytest.approx(2 * float(p), abs=0.002)  # both rounded to 0.001


def test_a_study_without_results_has_a_report(report_of):
    unknown = {"rate": None, "is_known": False, "damage": None}
    assert "A: not chosen yet" in report_of(RESULTS | {"runs": [], "rates": {"A": unknown, "B": unknown}})


def test_random_weights_are_complete_without_the_checkpoints_that_they_lack(report_of):
    """A measure of an early checkpoint alone is none of a model that is not trained."""
    plan = PLAN.replace('kind = "loss"\n', 'kind = "loss"\n[[measure]]\nkind = "rank"\nat = [10]\n')
    plan = plan.replace("seeds = 3", "seeds = 3\nrandom = true")
    runs = json.loads(json.dumps(RESULTS["runs"]))
    for run in runs:
        if run["model"] == "A":
            run["measures"]["rank"] = {"10": {"energy": [1.0]}}
    assert "Incomplete" not in report_of(RESULTS | {"plan": plan, "runs": runs})
    del runs[0]["measures"]["rank"]
    assert "Incomplete" in report_of(RESULTS | {"plan": plan, "runs": runs})


def test_the_figure_shows_seeds_mean_interval_and_margin(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *path, **options: drawn.append(figure))
    tested = outcome("equivalent", (1.0, 1.5, 0.8), margin=0.5)
    plot_contrasts(tmp_path / "contrasts.png", [tested], parse_plan(PLAN, "plan.toml"))
    [axes] = drawn[0].axes
    by_marker = {line.get_marker(): line for line in axes.lines}
    assert by_marker["D"].get_xydata().tolist() == [[tested.mean, 0]]
    assert by_marker["o"].get_xdata().tolist() == [*tested.values.values()]
    ends = [tuple(line.get_xdata()) for line in axes.lines[:4]]
    assert ends == [(0, 0), (0.5, 0.5), (-0.5, -0.5), tested.interval]
