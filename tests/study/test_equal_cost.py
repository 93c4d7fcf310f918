"""Numbers of updates that give all models of a plan the same tokens or FLOPs, and what follows from them."""

from dataclasses import replace
from pathlib import Path

import pytest

from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.cost.flops import Positions, forward_flops
from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.study.checks import check, dry_run, with_equal_cost_by_formula
from mae_lm_fairseq.study.plan import Plan, parse_plan
from mae_lm_fairseq.study.runs import Workspace, options_of
from mae_lm_fairseq.utils.errors import UserError

PLAN = """
[data]
data_bin = "no-such-data-bin"
text = "valid.txt"
[train]
updates = 1000
warmup = 100
checkpoints = [1, 500]
equal = "{}"
[options]
tokens-per-sample = 40
batch-size = 4
update-freq = 1
mask-prob-end = 0.1
leave-unmasked-prob = 0.1
random-token-prob = 0.1
[[model]]
name = "random"
arch = "mae_lm_tiny"
random = true
[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
options = {{ batch-size = 12, mask-prob = 0.5, mask-prob-end = 0.5 }}
[[measure]]
kind = "loss"
[[measure]]
kind = "rank"
at = [500]
"""
SCHEDULES = ("warmup-updates", "total-num-update", "mask-prob-updates")
MLM, MAE_LM = 1, 2
"""Places of the models in the plan."""


def plan_of(equal: str) -> Plan:
    return parse_plan(PLAN.format(equal), "plan.toml")


def equal_plan(equal: str) -> Plan:
    plan = plan_of(equal)
    return with_equal_cost_by_formula(plan, check(plan, needs_files=False))


def test_equal_flops_are_those_of_the_formulas():
    """MAE-LM predicts 20 of 40 tokens; MLM 15 % at the start and 10 % at the end, on average 5 of 40."""
    plan = equal_plan("flops")

    def of_update(name: str, rows: int, predicted: int) -> int:
        # Kept and random tokens, a fifth of the predicted ones, are visible.
        visible = 40 - predicted + round(0.2 * predicted)
        positions = Positions(40, visible, predicted)
        return rows * forward_flops(preset_config(name, "tiny"), PlannedRun.vocab_size, [positions]).total

    expected = 1000 * of_update("mae_lm_roberta", 4, 5) / of_update("mae_lm", 12, 20)
    assert plan.updates == {"MLM": 1000, "MAE-LM": round(expected)}
    assert 100 < expected < 500


def test_equal_tokens_are_those_of_the_sequences():
    assert equal_plan("tokens").updates == {"MLM": 1000, "MAE-LM": 333}
    plan = plan_of("tokens")
    report = dry_run(plan, check(plan, needs_files=False))
    assert f": 2 trainings of 1,000 or 333 updates, {1000 * 160 + 333 * 480:,} tokens" in report


def test_checkpoints_are_at_equal_fractions():
    plan = equal_plan("tokens")
    random, mlm, mae_lm = plan.models
    _, rank, cost = plan.measures
    assert plan.checkpoints_of(mlm) == plan.checkpoints_of(random) == [1, 500, 1000]
    assert plan.checkpoints_of(mae_lm) == [1, 166, 333]
    assert (plan.checkpoints_of(mae_lm, rank), plan.checkpoints_of(mae_lm, cost)) == ([166], [333])
    assert replace(plan, updates={"MAE-LM": 1}).checkpoints_of(mae_lm) == [1]


def test_schedules_have_the_length_of_each_training():
    plan = equal_plan("tokens")
    for number, lengths in ((MLM, [100, 1000, 1000]), (MAE_LM, [33, 333, 333])):
        options = options_of(plan, plan.models[number])
        assert [options[name] for name in SCHEDULES] == lengths


def test_the_first_model_finds_its_trainings_with_equal_updates(tmp_path):
    def folders(plan: Plan) -> list[Path]:
        workspace = Workspace(plan, tmp_path, 1, {"no-such-data-bin": "a"})
        return [workspace.training(model, None, 1).folder for model in plan.models]

    plain, equal = folders(plan_of("updates")), folders(equal_plan("tokens"))
    assert plain[:MAE_LM] == equal[:MAE_LM]
    assert plain[MAE_LM] != equal[MAE_LM]


def test_equal_updates_are_the_default():
    plan = parse_plan(PLAN.replace('equal = "{}"\n', "").format(), "plan.toml")
    assert plan.models == plan_of("updates").models
    assert [planned.name for planned in plan.measures] == ["loss", "rank"]  # the cost is not among them


def test_one_model_with_updates_of_its_own():
    text = PLAN.format("updates").replace(
        'arch = "mae_lm_tiny"\noptions', 'arch = "mae_lm_tiny"\nupdates = 300\noptions'
    )
    plan = parse_plan(text, "plan.toml")
    configurations = check(plan, needs_files=False)
    assert plan.updates == {"MAE-LM": 300}
    random, mlm, mae_lm = plan.models
    assert plan.checkpoints_of(mlm) == plan.checkpoints_of(random) == [1, 500, 1000]
    assert plan.checkpoints_of(mae_lm) == [1, 150, 300]
    options = options_of(plan, mae_lm)
    assert [options[name] for name in SCHEDULES] == [30, 300, 300]
    assert [planned.name for planned in plan.measures] == ["loss", "rank", "cost"]
    report = dry_run(plan, configurations)
    assert f": 2 trainings of 1,000 or 300 updates, {1000 * 160 + 300 * 480:,} tokens" in report


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ('arch = "mae_lm_roberta_tiny"', 'arch = "mae_lm_roberta_tiny"\nupdates = 9', r"model\[2\]\.updates: .*equal"),
        ("random = true", "random = true\nupdates = 9", r"model\[1\]\.updates: .*random"),
        ("random = true", "random = true\nupdates = 0", r"model\[1\]: updates 0"),
        ("random = true", "random = true\nupdate = 9", r"model\[1\]: update: .*is updates meant"),
    ],
)
def test_updates_of_a_model_that_contradict_the_plan(right, wrong, named):
    with pytest.raises(UserError, match=rf"^plan\.toml: {named}"):
        parse_plan(PLAN.format("flops").replace(right, wrong), "plan.toml")


def test_models_without_a_formula_have_no_equal_flops():
    plan = plan_of("flops")
    configurations = check(plan, needs_files=False)
    configurations[MAE_LM].model.wrapped = "{}"
    with pytest.raises(UserError, match=r"^plan\.toml: train\.equal: .*flops of MAE-LM.*seconds"):
        with_equal_cost_by_formula(plan, configurations)
    assert with_equal_cost_by_formula(plan_of("tokens"), configurations).updates == {"MLM": 1000, "MAE-LM": 333}
