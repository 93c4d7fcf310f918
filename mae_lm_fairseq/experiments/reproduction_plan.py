"""Estimated cost of the reproduction's pretraining runs, before there is a machine for them."""

from collections import Counter

from mae_lm_fairseq.analysis.cost import Plan, plan
from mae_lm_fairseq.analysis.planned_run import Run
from mae_lm_fairseq.experiments.preset_comparison import Variant
from mae_lm_fairseq.experiments.reproduction import trained, variants
from mae_lm_fairseq.experiments.scales import SCALES, Scale
from mae_lm_fairseq.recipes.machine import split_global_batch
from mae_lm_fairseq.recipes.settings import recipe
from mae_lm_fairseq.utils.markdown import markdown_table


def dry_run(name: str) -> str:
    """Return a table of the pretraining runs of a scale, with the assumptions behind it.

    Args:
        name: name of the scale.
    """
    scale = SCALES[name]
    runs = Counter(title for title, _ in trained(scale))
    plans = {title: plan(planned_run(scale, variant)) for title, variant in variants(scale).items()}
    rows = [[title, str(runs[title]), *_cells(planned, runs[title])] for title, planned in plans.items()]
    total = sum(planned.hours * runs[title] for title, planned in plans.items())
    run = next(iter(plans.values())).run
    header = ["model", "runs", "parameters, million", "memory, GB", "hours per run", "hours"]
    return "\n".join(
        [
            f"Pretraining: {scale.updates:,} updates of {run.tokens // scale.updates:,} tokens for each of "
            f"{runs.total()} runs; {run.tokens / 1e6:,.0f} million tokens per run, {_hours(total)} hours in all",
            "",
            markdown_table(header, rows),
            "",
            f"assumed: one {run.device_kind} per run at {run.mfu:.0%} of its {run.peak / 1e12:.0f} TFLOP/s in "
            f"{run.precision}, {run.device.memory / 1e9:.0f} GB; full sequences; a vocabulary of {run.vocab_size:,}.",
            "Networks smaller than base reach less. Measurements and fine-tuning are not included.",
            "mae-lm plan has other devices and precisions.",
        ]
    )


def planned_run(scale: Scale, variant: Variant) -> Run:
    """Return the pretraining run of a variant on one device, with the recipe of its architecture."""
    chosen = {name: cell.value for name, cell in recipe(variant.architecture).items()}
    batch_size, accumulated = split_global_batch(chosen["sequences"], 1, Run.batch_size, smaller=True)
    options = dict(zip(variant.options[::2], variant.options[1::2], strict=True))
    return Run(
        variant.architecture,
        mask_prob=chosen["mask_prob"],
        mask_in_encoder=float(options.get("--mask-in-encoder", 0)),
        vocab_size=scale.text.vocabulary if scale.text else Run.vocab_size,
        tokens_per_sample=chosen["tokens"],
        batch_size=batch_size,
        update_freq=accumulated,
        tokens=scale.updates * chosen["sequences"] * chosen["tokens"],
        devices=1,
    )


def _cells(planned: Plan, runs: int) -> list[str]:
    """Return parameters, memory, hours per run and hours of all runs."""
    numbers = (planned.parameters.total / 1e6, planned.memory_total / 1e9)
    return [*(f"{number:,.1f}" for number in numbers), _hours(planned.hours), _hours(planned.hours * runs)]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
