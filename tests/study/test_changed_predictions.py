"""A prediction that is changed after a look, in a plan that states its looks."""

from dataclasses import replace

import pytest

from mae_lm_fairseq.study.contrasts import Outcome
from mae_lm_fairseq.study.looks import marked, new_looks
from tests.study.test_looks import plan_of

PLAN = plan_of(seeds=3, looks=[2, 3])


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
    first = Outcome(contrast, {1: -1.0, 2: -1.2}, needed=(1, 2), p=0.2, sign_flip=0.5, corrected=0.2)
    looks = new_looks([first], PLAN, [], "2026-01-02")
    second = replace(first, contrast=replace(contrast, **changes), values={**first.values, 3: -1.1}, needed=(1, 2, 3))
    [found] = marked([second], PLAN, looks)
    assert found.is_exploratory == is_exploratory
