"""Looks at a study's results: what they do to its verdicts, over simulated studies."""

import json

import numpy as np
import pytest

from mae_lm_fairseq.study import contrasts, engine
from mae_lm_fairseq.study.contrasts import outcomes
from mae_lm_fairseq.study.endpoints import ValueBySeed
from mae_lm_fairseq.study.looks import marked, new_looks
from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.study.results_file import TrainingResult
from mae_lm_fairseq.utils.errors import UserError

PLAN = """
{looks}
[data]
data_bin = "data-bin"
text = "valid.txt"
[train]
updates = 8
[[model]]
name = "A"
arch = "mae_lm_tiny"
seeds = {seeds}
[[measure]]
kind = "loss"
[[contrast]]
name = "P"
of = "loss.loss"
model = "A"
predicted = "{predicted}"
primary = true
"""


def plan_of(seeds, looks=(), predicted="negative"):
    stated = f"looks = {[*looks]}" if looks else ""
    return parse_plan(PLAN.format(seeds=seeds, looks=stated, predicted=predicted), "plan.toml")


def report(plan, losses, before, seeds=None):
    """Return the outcome of the contrast after a report on seeds with a loss, 1 to N by default, and all looks."""
    seeds = seeds or range(1, len(losses) + 1)
    measured = [*seeds], ValueBySeed([{8: {"loss": loss}} for loss in losses], "loss")
    tested = marked(outcomes(plan, lambda model, value: measured), plan, before)
    return tested[0], [*before, *new_looks(tested, plan, before, "2026-01-02")]


def reports(plans, losses):
    """Yield the outcome of every report of a study whose plan changes."""
    looks = []
    for plan in plans:
        outcome, looks = report(plan, losses[: plan.models[0].seeds], looks)
        yield outcome


def ended(plans, effect, studies=1000):
    """Return the fraction of simulated studies that have been "shown" or "contradicted" after each of their reports."""
    losses = np.random.default_rng(1).normal(-effect, size=(studies, plans[-1].models[0].seeds))
    verdicts = np.array([[outcome.verdict for outcome in reports(plans, row)] for row in losses])
    return np.logical_or.accumulate(np.isin(verdicts, ["shown", "contradicted"]), axis=1).mean(axis=0)


@pytest.fixture(autouse=True)
def without_sign_flips(monkeypatch):
    monkeypatch.setattr(contrasts, "flip", lambda *args: 1.0)  # has no verdict, and takes most of the time


@pytest.mark.parametrize("looks", [(), (5, 10)])
def test_stopping_at_the_first_verdict_that_pleases_is_as_rarely_wrong_as_one_look(looks):
    """5 %, within two standard errors of a fraction of 1,000. Without an effect, half of them are "shown"."""
    plans = [plan_of(seeds, looks) for seeds in looks or range(2, 9)]
    assert ended(plans, effect=0)[-1] == pytest.approx(0.05, abs=0.014)


def test_stated_looks_find_an_effect_early():
    """With two standard deviations, as docs/studies.md says."""
    first, last = ended([plan_of(seeds, (5, 10)) for seeds in (5, 10)], effect=2)
    assert first == pytest.approx(0.82, abs=0.03)
    assert last > 0.99


RISING = [-0.2, -1.5, -1.1, -1.2, -1.3, -1.0]
"""Losses that are "not shown" with two seeds, and would be with all."""


@pytest.mark.parametrize(
    ("plans", "verdicts"),
    [
        ([plan_of(2), plan_of(2), plan_of(6)], ["not shown", "not shown", "exploratory"]),
        ([plan_of(6), plan_of(5)], ["shown", "exploratory"]),
        ([plan_of(2), plan_of(2, predicted="positive")], ["not shown", "exploratory"]),
        ([plan_of(2, (2, 6)), plan_of(6, (2, 6))], ["not shown", "shown"]),
        ([plan_of(2), plan_of(6, (2, 6))], ["not shown", "exploratory"]),  # stated too late
        ([plan_of(2, (2, 3)), plan_of(6, (2, 6))], ["not shown", "exploratory"]),  # other ones stated
    ],
)
def test_a_verdict_after_a_look_that_was_not_planned_is_exploratory(plans, verdicts):
    assert [outcome.verdict for outcome in reports(plans, RISING)] == verdicts


def test_a_report_without_all_seeds_is_no_look():
    outcome, looks = report(plan_of(6), RISING[:5], [])
    assert (outcome.verdict, looks) == ("open, 5 of 6 seeds", [])
    assert report(plan_of(6), RISING, looks)[0].verdict == "shown"


def test_between_stated_looks_the_earlier_one_counts():
    plan = plan_of(6, (2, 6))
    at_two, looks = report(plan, RISING[:2], [])
    between, more = report(plan, RISING[:5], looks)
    assert (between, more) == (at_two, looks)
    assert report(plan, RISING, more)[0].p < 0.01 < at_two.corrected


@pytest.mark.parametrize("seeds", [[1, 2, 4], [1, 2, 4, 5, 6]])
def test_as_many_seeds_as_at_a_look_are_no_look_if_they_are_others(seeds):
    """Else whoever reports before seed 3 has ended looks at a number that nothing corrects for."""
    outcome, looks = report(plan_of(6, (3, 6)), RISING[: len(seeds)], [], seeds)
    assert (outcome.verdict, looks) == ("open, 2 of 3 seeds", [])


def test_other_numbers_of_seeds_than_the_looks_are_refused():
    with pytest.raises(UserError, match=r"plan\.toml: looks: P has 4 seeds"):
        plan_of(4, (5, 10))


def test_both_looks_are_reported(tmp_path, monkeypatch):
    def result(workspace, seed):
        texts = dict.fromkeys(("commands", "commits", "machines", "versions"), ("one",))
        measures = {"loss": {"8": {"loss": RISING[seed - 1]}}}
        return TrainingResult(
            model="A", learning_rate=None, seed=seed, seconds={"training": 1.0}, measures=measures, **texts
        )

    monkeypatch.setattr(engine, "fingerprints", lambda *args: {})
    monkeypatch.setattr(engine, "collect_training", result)
    monkeypatch.setattr(engine, "needed_trainings", lambda workspace: workspace.plan.models[0].all_seeds)
    monkeypatch.setattr(engine, "complete", lambda *args: None)
    for seeds in (2, 3, 3):
        engine.run_study(plan_of(seeds), tmp_path)
    looks = json.loads((tmp_path / "plan.json").read_text())["looks"]
    assert [(len(look["seeds"]), look["verdict"]) for look in looks] == [(2, "not shown"), (3, "exploratory")]
    text = (tmp_path / "report.md").read_text()
    for look in looks:
        assert f"| P | {look['date']} | {len(look['seeds'])} | {look['p']:.3f} |" in text
    assert "**exploratory**" in text
    assert "*Exploratory*: seeds were added" in text
