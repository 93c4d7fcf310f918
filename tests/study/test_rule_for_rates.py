"""The rule for learning rates, from made-up losses: its seeds, and rates that diverge."""

import json

import pytest

from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.study.rates import needed_trainings
from mae_lm_fairseq.study.runs import Workspace

PLAN = """
[data]
data_bin = "data-bin"
text = "valid.txt"
[train]
updates = 8
[rates]
lowest = "loss.loss"
seeds = 2
[[model]]
name = "A"
arch = "mae_lm_tiny"
seeds = 3
learning_rates = [1e-3, 2e-3]
[[measure]]
kind = "loss"
"""
AT_BOTH_RATES = [(1e-3, 1), (1e-3, 2), (2e-3, 1), (2e-3, 2)]
"""Learning rates and seeds that the rule needs."""


@pytest.fixture
def workspace(tmp_path):
    """Return where the plan is run, with made-up fingerprints of its files."""
    return Workspace(parse_plan(PLAN, "plan.toml"), tmp_path, 1, {"data-bin": "1", "valid.txt": "2"})


def measure(workspace, rate, seed, value):
    """Write the result of a training."""
    [model], [loss] = workspace.plan.models, workspace.plan.measures
    measures = {workspace.key(loss, model): {"loss": value}}
    result = {"commit": None, "machine": "a", "versions": {}, "seconds": 0.0, "measures": measures}
    path = workspace.training(model, rate, seed).result(8)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"command": [], "seconds": 1.0, "result": result}))


def trainings(workspace):
    return sorted((training.learning_rate, training.seed) for training in needed_trainings(workspace))


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([3.0, 3.0, 2.0, 5.0], 1e-3),  # the first seed alone would choose the other rate
        ([3.0, 3.0, 2.0, 3.5], 2e-3),
        ([None, None, 9.0, 9.0], 2e-3),  # NaN, which is neither above nor below a loss
        ([9.0, 9.0, None, 9.0], 1e-3),
    ],
)
def test_the_lowest_mean_over_the_seeds_of_the_rule_chooses(losses, chosen, workspace):
    assert trainings(workspace) == AT_BOTH_RATES
    for (rate, seed), loss in zip(AT_BOTH_RATES, losses, strict=True):
        assert trainings(workspace) == AT_BOTH_RATES
        measure(workspace, rate, seed, loss)
    assert trainings(workspace) == sorted([*AT_BOTH_RATES, (chosen, 3)])
