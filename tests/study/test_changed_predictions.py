"""A prediction that is changed after a look, in a plan that states its looks."""

from dataclasses import replace

import pytest

from mae_lm_fairseq.study.contrasts import Outcome
from mae_lm_fairseq.study.looks import marked, new_looks
from mae_lm_fairseq.study.plan import parse_plan

PLAN = parse_plan(
    """
looks = [2, 3]
[data]
data_bin = "data-bin"
text = "valid.txt"
[train]
updates = 8
[[model]]
name = "A"
arch = "mae_lm_tiny"
seeds = 3
[[measure]]
kind = "loss"
[[contrast]]
name = "P"
of = "loss.loss"
model = "A"
predicted = "negative"
primary = true
""",
    "plan.toml",
)


@pytest.mark.parametrize(
    ("changes", "is_exploratory"),
    [
        ({}, False),
        ({"predicted": "positive"}, True),
        ({"predicted": "not worse", "margin": 0.1}, True),
    ],
)
def test_a_changed_prediction_is_exploratory_at_a_stated_look(changes, is_exploratory):
    [contrast] = PLAN.contrasts
    first = Outcome(contrast, {1: -1.0, 2: -1.2}, needed=2, p=0.2, sign_flip=0.5, corrected=0.2)
    looks = new_looks([first], PLAN, [], "2026-01-02")
    second = replace(first, contrast=replace(contrast, **changes), values={**first.values, 3: -1.1}, needed=3)
    [found] = marked([second], PLAN, looks)
    assert found.is_exploratory == is_exploratory
