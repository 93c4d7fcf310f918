"""The rule of the study headroom: tasks, verdicts and their frequencies without an effect."""

import numpy as np
import pytest

from experiments import headroom
from experiments.headroom import Headroom, choose, headroom_of, is_not_inferior, simulate, verdict

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
