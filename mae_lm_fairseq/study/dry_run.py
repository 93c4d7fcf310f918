"""Cost of a study before it is run: trainings, updates, tokens, memory and hours, by the cost planner."""

from collections.abc import Sequence
from typing import Any

import torch

from mae_lm_fairseq.cost.planned_run import Run
from mae_lm_fairseq.cost.planner import Plan as Cost
from mae_lm_fairseq.cost.planner import plan as plan_cost
from mae_lm_fairseq.study.plan import Model, Plan
from mae_lm_fairseq.training.estimate import CPU_FRACTION, duration, matrix_rate, planned_run, vocabulary_size
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import markdown_table

DEVICE = "a100-80"
HEADER = ("model", "trainings", "million tokens each", "million parameters", "memory, GB", "each", "in all")


def dry_run(plan: Plan, configurations: Sequence[Any]) -> str:
    """Return a table of the trainings of a plan, with the assumptions behind it."""
    vocabulary = vocabulary_size(plan.data.data_bin)
    rows, hours, tokens, flops = [], 0.0, 0, 0.0
    for model, cfg in zip(plan.models, configurations, strict=True):
        planned, trainings = plan_cost(training_of(plan, model, cfg, vocabulary)), count_trainings(plan, model)
        hours, tokens = hours + planned.hours * trainings, tokens + planned.run.tokens * trainings
        flops += planned.flops.total * planned.run.tokens * trainings
        rows.append([model.name, str(trainings), *_cells(planned), duration(planned.hours * trainings)])
    run, number = planned.run, sum(int(row[1]) for row in rows)
    lines = [
        f"{plan.title}: {number} trainings of {plan.train.updates:,} updates, {tokens / 1e6:,.0f} million tokens, "
        f"{duration(hours)} on one {DEVICE}",
        "",
        markdown_table(HEADER, rows),
        "",
        f"assumed: one {DEVICE} per training at {run.mfu:.0%} of its {run.peak / 1e12:.0f} TFLOP/s in {run.precision}, "
        f"full sequences, a vocabulary of {vocabulary:,}. Networks smaller than base reach less.",
    ]
    if not torch.cuda.is_available():
        rate = matrix_rate()
        lines.append(
            f"On this machine, which has no GPU, about {duration(flops / (CPU_FRACTION * rate) / 3600)}: at "
            f"{CPU_FRACTION:.0%} of the {rate / 1e9:.0f} GFLOP/s that all cores reach now in float32."
        )
    if not plan.data.data_bin.exists():
        lines.append(f"{plan.data.data_bin} does not exist: the files of the plan were not checked.")
    left_out = (f"{one.name} after {one.checkpoints(plan.checkpoints)} updates" for one in plan.measures)
    lines.append(f"not included: {', '.join(left_out) or 'measures, of which there are none'}; rates that are halved.")
    return "\n".join(lines)


def _cells(planned: Cost) -> list[str]:
    numbers = planned.run.tokens / 1e6, planned.parameters.total / 1e6, planned.memory_total / 1e9
    return [*(f"{number:,.1f}" for number in numbers), duration(planned.hours)]


def count_trainings(plan: Plan, model: Model) -> int:
    """Return the number of trainings of a model, without those at halved learning rates."""
    seeds = len(model.all_seeds)
    if len(model.learning_rates) < 2:
        return seeds
    return seeds + (len(model.learning_rates) - 1) * min(seeds, plan.rates.seeds)


def training_of(plan: Plan, model: Model, cfg: Any, vocabulary: int) -> Run:
    """Return a training of a model on one device, for the cost planner.

    Raises:
        UserError: if so little is masked that no token of a sequence is.
    """
    try:
        return planned_run(cfg, vocabulary, plan.train.updates, kind=DEVICE, precision=Run.precision)
    except ValueError as problem:
        raise UserError(f"{model.name}: {problem}") from None
