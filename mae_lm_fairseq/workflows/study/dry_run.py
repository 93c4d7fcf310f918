"""Cost of a study before it is run: trainings, updates, tokens, memory and hours, by the cost planner."""

from collections.abc import Sequence
from typing import Any

import torch

from mae_lm_fairseq.analysis.cost import plan as plan_cost
from mae_lm_fairseq.analysis.planned_run import Run
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.utils.markdown import markdown_table
from mae_lm_fairseq.workflows.study.plan import Model, Plan

DEVICE = "a100-80"


def dry_run(plan: Plan, configurations: Sequence[Any]) -> str:
    """Return a table of the trainings of a plan, with the assumptions behind it.

    Args:
        plan: the plan.
        configurations: fairseq's configurations of its models.
    """
    dictionary = plan.data.data_bin / DICTIONARY
    vocabulary = len(read_symbols(dictionary)) if dictionary.exists() else Run.vocab_size
    rows, hours, tokens, number = [], 0.0, 0, 0
    for model, cfg in zip(plan.models, configurations, strict=True):
        planned, trainings = plan_cost(planned_run(plan, model, cfg, vocabulary)), count_trainings(plan, model)
        hours, tokens, number = (
            hours + planned.hours * trainings,
            tokens + planned.run.tokens * trainings,
            number + trainings,
        )
        rows.append(
            [
                model.name,
                str(trainings),
                f"{plan.train.updates:,}",
                f"{planned.run.tokens / 1e6:,.1f}",
                f"{planned.parameters.total / 1e6:,.1f}",
                f"{planned.memory_total / 1e9:,.1f}",
                _hours(planned.hours),
                _hours(planned.hours * trainings),
            ]
        )
    header = [
        "model",
        "trainings",
        "updates",
        "million tokens",
        "million parameters",
        "memory, GB",
        "hours each",
        "hours",
    ]
    run = planned.run
    lines = [
        f"{plan.title}: {number} trainings, {tokens / 1e6:,.0f} million tokens, {_hours(hours)} hours on one {DEVICE}",
        "",
        markdown_table(header, rows),
        "",
        f"assumed: one {DEVICE} per training at {run.mfu:.0%} of its {run.peak / 1e12:.0f} TFLOP/s in {run.precision}, "
        f"full sequences, a vocabulary of {vocabulary:,}. Networks smaller than base reach less.",
        f"not included: {', '.join(measure.name for measure in plan.measures) or 'nothing'}, at "
        f"{len(plan.checkpoints)} checkpoints of each training; learning rates that are halved.",
    ]
    if not torch.cuda.is_available():
        lines.append("This machine has no GPU; the first training that is finished shows how long one takes here.")
    return "\n".join(lines)


def count_trainings(plan: Plan, model: Model) -> int:
    """Return the number of trainings of a model, without those at halved learning rates."""
    seeds = len(model.all_seeds)
    if len(model.learning_rates) < 2:
        return seeds
    return seeds + (len(model.learning_rates) - 1) * min(seeds, plan.rates.seeds)


def planned_run(plan: Plan, model: Model, cfg: Any, vocabulary: int) -> Run:
    """Return a training of a model on one device, for the cost planner."""
    accumulated = int(cfg.optimization.update_freq[0])
    batch = cfg.dataset.batch_size or max(1, cfg.dataset.max_tokens // cfg.task.tokens_per_sample)
    return Run(
        model.arch,
        mask_prob=cfg.task.mask_prob,
        mask_in_encoder=float(getattr(cfg.task, "mask_in_encoder", 0.0)),
        vocab_size=vocabulary,
        tokens_per_sample=cfg.task.tokens_per_sample,
        batch_size=batch,
        update_freq=accumulated,
        tokens=plan.train.updates * batch * accumulated * cfg.task.tokens_per_sample,
        devices=1,
        device_kind=DEVICE,
        network=core_config(cfg.model),
    )


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
