"""The rule of the study headroom: tasks, verdicts and their frequencies without an effect."""

import json

import numpy as np
import pytest

from experiments import headroom, headroom_figure
from experiments.findings import RESULTS
from experiments.headroom import Headroom, apply_rule, choose, headroom_of, is_not_inferior, simulate, verdict
from tests.support.refusals import refused

NOTHING = {"a": [0.01, -0.01, 0.02, -0.02, 0.0], "b": [0.0, 0.01, -0.01, 0.01, 0.0]}
BETTER = {"a": [0.3, 0.31, 0.29, 0.3, 0.32], "b": NOTHING["b"]}
WORSE = {"a": NOTHING["a"], "b": [-0.3, -0.31, -0.29, -0.3, -0.32]}
NOISE = {"a": [0.5, -0.4, 0.1, -0.2, 0.05], "b": NOTHING["b"]}


@pytest.mark.parametrize(
    ("best", "lowest", "expected"),
    [
        (BETTER, NOTHING, "supported"),
        (WORSE, BETTER, "contradicted"),
        ({"a": BETTER["a"], "b": WORSE["b"]}, NOTHING, "mixed"),
        (NOTHING, NOTHING, "equivalent"),
        (NOTHING, WORSE, "equivalent"),
        (NOTHING, BETTER, "speed only"),
        (NOISE, BETTER, "cannot tell"),
    ],
)
def test_verdicts(best, lowest, expected):
    assert verdict(best, lowest) == expected


def test_non_inferiority_is_of_the_mean_over_measures():
    assert is_not_inferior(NOTHING)
    assert not is_not_inferior(WORSE)
    balanced = {"a": [0.3] * 5, "b": [-0.3, -0.31, -0.29, -0.3, -0.3]}
    assert is_not_inferior(balanced)


def test_at_most_two_sizes_of_a_task_are_chosen():
    rooms = {"UPOS": 9, "UPOS, 500": 8, "UPOS, 50": 7, "CoLA": 3, "RTE": 1, "SST-2": 5}
    candidates = [Headroom(name, 50.0, 50.0 + room, 1.0) for name, room in rooms.items()]
    assert [chosen.measure for chosen in choose(candidates)] == ["UPOS", "UPOS, 500", "SST-2", "CoLA"]


def test_headroom_is_that_of_the_rates_that_held_out_rows_choose():
    def run(model, seed, dev, test):
        rates = ("0.0001", "0.001")
        values = {f"accuracy at {rate}": value for rate, value in zip(rates, dev, strict=True)}
        values |= {f"test_accuracy at {rate}": value for rate, value in zip(rates, test, strict=True)}
        return {"model": model, "seed": seed, "measures": {"SST-2, 500": {"10": values}}}

    runs = [run("MLM", 0, (70, 60), (66, 90)), run("3ML", 0, (60, 70), (90, 74))]
    runs += [run(headroom.RANDOM, seed, (50, 60), (0, 50 + seed)) for seed in range(3)]
    room = headroom_of({"runs": runs}, "SST-2, 500")
    assert (room.pretrained, room.random) == (70, 51)
    assert room.deviation == pytest.approx((1 + 100**2 * 0.7 * 0.3 / 872) ** 0.5, rel=1e-12)


def test_the_simulation_counts_what_the_rule_says(monkeypatch):
    """A headroom of ten deviations cannot show equivalence with this margin; one of forty does."""
    monkeypatch.setattr(headroom, "SIMULATED", 300)

    def frequencies(deviations, effect=0.0):
        tasks = [Headroom(name, 0.0, deviations, 1.0) for name in "abcd"]
        return simulate(tasks, effect, np.random.default_rng(1))

    few, many = frequencies(10), frequencies(40)
    assert few.get("equivalent", 0) < 0.1  # measured: 0.00 and 0.99
    assert many["equivalent"] + many["speed only"] > 0.6
    for shares in (few, many):
        without_effect = sum(shares.get(name, 0) for name in ("supported", "contradicted", "mixed"))
        assert without_effect < 0.1  # 0.05, with a standard error of 0.013
        assert sum(share for name, share in shares.items() if name != "not inferior") == pytest.approx(1)
    assert frequencies(40, effect=1.0)["supported"] == 1


def main_results(seeds):
    """Return results of a measure in the main study, whose scores differ in every run; the middle rate is the best."""
    generator = np.random.default_rng(1)
    runs = []
    for model in [*headroom_figure.COLOURS, headroom.RANDOM]:
        for seed in seeds:
            score = 60 + 10 * generator.random()
            values = {}
            for rate, gain in (("0.0001", 0), ("0.0003", 5), ("0.001", 1)):
                values |= {f"accuracy at {rate}": 50 + gain, f"test_accuracy at {rate}": score + gain}
            runs.append({"model": model, "seed": seed, "measures": {"UPOS": {"10": values}}})
    return {"runs": runs}


def test_what_the_rule_writes_is_json_and_pairs_seeds():
    results = main_results(seeds=[3, 1, 2])
    task = Headroom("UPOS", 20.0, 70.0, 1.0)
    written = json.loads(json.dumps(apply_rule(results, [task])))
    scores = {(run["model"], run["seed"]): run["measures"]["UPOS"]["10"] for run in results["runs"]}
    pairs = [[scores[model, seed]["test_accuracy at 0.0003"] for model in ("MAE-LM", "MLM")] for seed in (1, 2, 3)]
    expected = [(ours - theirs) / 50 for ours, theirs in pairs]
    assert written["MAE-LM"]["at_the_chosen_rates"]["UPOS"]["differences"] == pytest.approx(expected, rel=1e-12)
    assert written.keys() == {"MAE-LM", "3ML-self"}


def test_no_seed_is_paired_with_another_one():
    task = Headroom("UPOS", 20.0, 70.0, 1.0)
    for seeds, named in (([1, 2, 4], "MLM.*complete"), ([1, 2, 3, 3], "seed")):
        results = main_results(seeds=[1, 2, 3])
        others = [run for run in results["runs"] if run["model"] != "MLM"]
        of_mlm = [run for run in main_results(seeds)["runs"] if run["model"] == "MLM"]
        with refused(named):
            apply_rule({"runs": [*others, *of_mlm]}, [task])


def test_of_equal_rates_the_lowest_is_chosen():
    """The sums of these rows are equal; their means are not, in floating point."""
    right_rows = {"0.0001": (151, 152, 153, 154, 158), "0.0003": (150, 151, 154, 156, 157)}
    runs = []
    for seed in range(5):
        values = {f"accuracy at {rate}": 100 * rows[seed] / 249 for rate, rows in right_rows.items()}
        runs.append({"model": "MLM", "seed": seed, "measures": {"RTE": {"10": values}}})
    assert headroom.chosen_rate({"runs": runs}, "MLM", "RTE") == "0.0001"


def test_the_figure_shows_every_seed_of_every_model():
    seeds = [1, 2, 3, 4, 5]
    drawn = headroom_figure.figure(main_results(seeds), [Headroom("UPOS", 20.0, 70.0, 1.0)])
    scores, differences = ([line for line in axes.lines if line.get_marker() == "o"] for axes in drawn.axes)
    assert [len(line.get_ydata()) for line in scores] == [5, 5, 5]
    assert [len(line.get_ydata()) for line in differences] == [5, 5]
    of_mlm, of_mae_lm, _ = (line.get_ydata() for line in scores)
    np.testing.assert_allclose(differences[0].get_ydata(), 100 * (of_mae_lm - of_mlm) / 50, rtol=1e-12)


def test_the_page_has_the_losses_of_stage_r_and_every_best_rate_is_in_the_interior():
    page = (RESULTS / "headroom/README.md").read_text(encoding="utf-8")
    losses = {}
    for run in json.loads((RESULTS / "headroom/rates.json").read_text(encoding="utf-8"))["runs"]:
        losses[run["model"], run["learning_rate"]] = run["measures"]["loss"]["3800"]["loss"]
    for rate, name in ((5e-4, "5e-4"), (1e-3, "1e-3"), (2e-3, "**2e-3**"), (4e-3, "4e-3")):
        cells = [f"{losses[arm, rate]:.2f}" for arm in headroom_figure.COLOURS]
        assert f"| {name} | {' | '.join(cells)} |" in page
    best = {arm: losses[arm, 2e-3] for arm in headroom_figure.COLOURS}
    for (arm, rate), loss in losses.items():
        assert loss >= best[arm], (arm, rate)
    assert f"MAE-LM is {best['MAE-LM'] - best['MLM']:.2f} nats behind" in page
    assert f"3ML {best['MLM'] - best['3ML-self']:.2f} nats ahead" in page
