"""A study of two models, whose trainings are written as if they had ended."""

from pathlib import Path

from mae_lm_fairseq.study.plan import Model, Plan, parse_plan
from mae_lm_fairseq.study.runs import Workspace
from mae_lm_fairseq.utils.files import write_record

PLAN = """
title = "A study"

[data]
data_bin = "{data}"

[train]
updates = 1

[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
seeds = {seeds}

[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
seeds = {seeds}

[[measure]]
kind = "seconds"

[[contrast]]
name = "time"
of = "seconds.per_update"
model = "MAE-LM"
less = "MLM"
predicted = "positive"
primary = true
"""


def plan_of_two_models(seeds: int, data: Path) -> Plan:
    """Return a plan of two models that measures nothing but time."""
    return parse_plan(PLAN.format(seeds=seeds, data=data), "plan.toml")


def finish_training(workspace: Workspace, model: Model, seed: int, kept: dict[str, str] | None = None) -> None:
    """Write the result of a training, with the hashes of files that it keeps."""
    training = workspace.training(model, None, seed)
    training.folder.mkdir(parents=True, exist_ok=True)
    seconds = {"per_update": 1.0 + seed, "tokens_per_update": 1.0}
    measures = {workspace.key(measure, model): seconds for measure in workspace.plan.measures}
    made_by = {"commit": "x", "machine": "y", "versions": {}, "seconds": 0.5}
    result = {**made_by, "measures": measures, "kept": kept or {}}
    write_record(training.result(1), {"name": "a run", "command": ["train"], "result": result, "seconds": 1.5})
