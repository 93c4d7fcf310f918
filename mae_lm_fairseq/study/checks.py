"""A plan before anything is trained: checks against its files and against fairseq, and its cost by the cost planner."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.decoder import try_decoder
from mae_lm_fairseq.cost.planned_run import PlannedRun, kind_of_gpu
from mae_lm_fairseq.cost.planner import Cost, plan_cost
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.fairseq_patches.saved_configurations import check_saved_configuration
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.study.plan import Model, Plan
from mae_lm_fairseq.study.run_files import Training
from mae_lm_fairseq.study.runs import RESERVED_OPTIONS, files_of, train_options
from mae_lm_fairseq.tasks.masked_autoencoder_lm import check_task, try_mask_function
from mae_lm_fairseq.tasks.masking_rates import variable_rate
from mae_lm_fairseq.tasks.options import check_length, check_masking, check_options
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.trained.huggingface.from_scratch import encoder_options
from mae_lm_fairseq.trained.reading import read_bundle, read_checkpoint
from mae_lm_fairseq.training.command import arguments
from mae_lm_fairseq.training.estimate import (
    CPU_FRACTION,
    TrainingRun,
    duration,
    matrix_rate,
    planned_run,
    tokens_and_flops,
    vocabulary_size,
)
from mae_lm_fairseq.training.pretrain import checked_configuration
from mae_lm_fairseq.training.timing import MEASURED_UPDATES, measured_hours
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import counted, markdown_table
from mae_lm_fairseq.utils.training_options import OTHER_NAMES

DEVICE = "a100-80"
START_SECONDS = 15
"""Time of a core that a process takes to start and to end, whatever it does in between."""
HEADER = ("model", "trainings", "million tokens each", "million parameters", "memory, GB", "each", "in all")


def check(plan: Plan, needs_files: bool = True) -> list[Any]:
    """Check a plan, and return fairseq's configuration of every model.

    Args:
        needs_files: whether the files of ``[data]`` must exist.

    Raises:
        UserError: if a file is missing or damaged, or fairseq-train would refuse an option; names key and line.
    """
    if needs_files:
        with _located(plan, ("data", "data_bin")):
            check_data(plan.data.data_bin)
        files_of(plan)
        for number, planned in enumerate(plan.measures):
            with _located(plan, ("measure", number)):
                planned.measure.check(plan.data)  # reads the files, hours before they are needed
    configurations = [_check_model(plan, number, needs_files) for number in range(len(plan.models))]
    with_equal_cost_by_formula(plan, configurations)
    return configurations


def with_equal_cost_by_formula(plan: Plan, configurations: Sequence[Any]) -> Plan:
    """Return the plan with as many updates of each model as have the tokens or FLOPs of the first one, if it asks.

    Args:
        configurations: fairseq's configurations of the models, from :func:`check`.

    Raises:
        UserError: if no formula describes the FLOPs of a model; names it.
    """
    equal = plan.train.equal
    if equal not in ("tokens", "flops"):
        return plan
    costs = {}
    for model, cfg in zip(plan.models, configurations, strict=True):
        if model.random:
            continue
        costs[model.name] = tokens_and_flops(cfg, plan.data.data_bin, plan.train.updates)[equal]
        if costs[model.name] is None:
            problem = f'no formula describes the {equal} of {model.name}; use equal = "seconds"'
            raise plan.document.error(("train", "equal"), problem)
    return plan.with_equal_cost(costs)


def check_data(data: Path) -> None:
    """Check that a data-bin has the files for pretraining and validation.

    Raises:
        UserError: if a file is missing or truncated.
    """
    if not (data / "dict.txt").is_file():
        raise UserError(f"{data} is no data-bin: it has no dict.txt; mae-lm prepare makes one")
    for split in ("train", "valid"):
        check_data_bin(data / split)


def _check_model(plan: Plan, number: int, needs_files: bool) -> Any:
    """Check a model, and return fairseq's configuration of it."""
    model = plan.models[number]
    key = ("model", number)
    _check_option_names(plan, model, ("options",), plan.options)
    _check_option_names(plan, model, (*key, "options"), model.options)
    with _located(plan, (*key, "masks")):
        for planned in plan.measures:
            planned.measure.check_masks(model.masks)
    if model.encoder is not None:
        with _located(plan, (*key, "encoder")):
            encoder_options(model.encoder, model.arch, plan.data.data_bin)

    if not needs_files:
        model = replace(model, start=None)
    with _located(plan, key):
        cfg = _configuration(plan, model)
        if needs_files:
            try_mask_function(cfg.task)
    if model.start is not None:
        with _located(plan, (*key, "start")):
            _check_start(plan, model, core_config(cfg.model))
    return cfg


def _configuration(plan: Plan, model: Model) -> Any:
    """Return fairseq's configuration of a model, after the checks of fairseq-train that need no data.

    Raises:
        UserError: if one fails.
    """
    rate = model.learning_rates[0] if model.learning_rates else None
    options = train_options(plan, Training(model, rate, 1), plan.updates_of(model), Path("checkpoints"))
    cfg = checked_configuration(arguments(plan.data.data_bin, options))
    check_saved_configuration({"cfg": cfg}, plan.document.name)  # fairseq evaluates the values of some options
    check_settings(cfg)
    check_task(cfg.task)
    network = core_config(cfg.model)
    check_options(cfg.task)
    check_masking(cfg.task, network)
    if model.encoder is not None:
        check_length(cfg.task, network.max_positions, f"max_position_embeddings of {model.encoder}")
    variable_rate(cfg.task)
    try_decoder(network)
    return cfg


def _check_option_names(plan: Plan, model: Model, key: tuple, options: Mapping[str, Any]) -> None:
    """Check that options of a plan or a model are none that a study decides on, and do not contradict others."""
    error = plan.document.error
    for name in options:
        if name.replace("_", "-") in RESERVED_OPTIONS:
            problem = f"every study decides on --{name}; remove it, or use [train] or a key of models"
            raise error((*key, name), problem)
        if name in OTHER_NAMES:  # under which the number of sequences per update would change unnoticed
            raise error((*key, name), f"a plan calls this option {OTHER_NAMES[name]}")
    if "lr" in options and model.learning_rates:
        raise error((*key, "lr"), "contradicts learning_rates of the model; remove one")
    if "max-tokens" in options and "update-freq" not in {**plan.options, **model.options}:
        raise error((*key, "max-tokens"), "needs update-freq, the number of batches per update")


def _check_start(plan: Plan, model: Model, network: MaskedAutoencoderConfig) -> None:
    """Check that a model can start from its checkpoint or bundle; fairseq-train takes no directory of transformers.

    Raises:
        UserError: if it cannot be read, or has another encoder.
    """
    if model.start.is_dir():
        start = read_bundle(model.start)
    else:
        start = read_checkpoint(model.start, plan.data.data_bin)
    differing = []
    for name, value in vars(network).items():
        is_of_encoder = name.startswith(("encoder_", "relative_", "max_positions", "pre_norm"))
        if is_of_encoder and getattr(start.config, name) != value:
            differing.append(name)
    if differing:
        raise UserError(f"{model.start} has another encoder than {model.arch}: {', '.join(differing)}")


@contextlib.contextmanager
def _located(plan: Plan, key: tuple) -> Iterator[None]:
    """Add key and line to errors: those of the first option that the message names and the plan has, or of ``key``."""
    try:
        yield
    except UserError as problem:
        of_model = plan.models[key[1]].options if key[0] == "model" else {}
        named = re.findall(r"--([a-z0-9-]+)", str(problem))
        places = [(*key, "options", name) for name in named if name in of_model]
        places += [("options", name) for name in named if name in plan.options]
        place = places[0] if places else key
        raise plan.document.error(place, str(problem)) from None


def dry_run(plan: Plan, configurations: Sequence[Any]) -> str:
    """Return a table of the trainings of a plan, with the assumptions behind it, and what has no estimate."""
    plan = with_equal_cost_by_formula(plan, configurations)
    has_gpu = torch.cuda.is_available()
    device = DEVICE
    if has_gpu:
        device = kind_of_gpu(torch.cuda.get_device_properties(0)) or DEVICE
    vocabulary = vocabulary_size(plan.data.data_bin)
    trainings = {model.name: count_trainings(plan, model) for model in plan.models}
    runs, without_estimate = _planned_runs(plan, configurations, vocabulary, device)
    costs = {name: plan_cost(run) for name, run in runs.items() if not run.is_wrapped}
    whole = _cost_of_study(costs, trainings)

    number = sum(trainings.values())
    tokens = sum(run.tokens * trainings[name] for name, run in runs.items())
    updates = dict.fromkeys(f"{plan.updates_of(model):,}" for model in plan.models)
    processes = number * (1 + len(plan.checkpoints))
    starting = processes * START_SECONDS / 3600
    lines = [f"{plan.title}: {counted(number, 'training')} of {' or '.join(updates)} updates, {tokens:,} tokens"]
    if not has_gpu:
        lines.append(_on_this_cpu(whole.flops, starting))
    lines += _measured_lengths(runs)
    lines += equal_starts(plan)
    lines += [
        f"The times include {duration(starting)} for the start of {processes:,} processes: one for each training, and "
        "one for each checkpoint, which is measured.",
        f"On one {device} {duration(whole.hours + starting)}:",
        "",
        markdown_table(HEADER, [_row(name, count, costs.get(name)) for name, count in trainings.items()]),
        "",
        f"assumed: one {device} per training at {PlannedRun.mfu:.0%} of its data sheet's FLOP/s in "
        f"{PlannedRun.precision}, full sequences, a vocabulary of {vocabulary:,}. "
        "Networks smaller than base reach less.",
    ]
    if not plan.data.data_bin.exists():
        lines.append(f"{plan.data.data_bin} does not exist: the files of the plan were not checked.")
    lines.append(f"not included: {'; '.join([*without_estimate, _without_estimate(plan)])}.")
    return "\n".join(lines)


def _planned_runs(
    plan: Plan, configurations: Sequence[Any], vocabulary: int, device: str
) -> tuple[dict[str, TrainingRun], list[str]]:
    """Return a training of each model for the cost planner, by name; and what it cannot describe, with the reason."""
    runs = {}
    problems = []
    for model, cfg in zip(plan.models, configurations, strict=True):
        if model.random:
            continue
        try:
            runs[model.name] = planned_run(cfg, vocabulary, plan.updates_of(model), kind=device)
        except ValueError as problem:
            problems.append(f"{model.name} ({problem})")
    return runs, problems


class StudyCost(NamedTuple):
    """Hours and FLOPs of all trainings that a formula describes."""

    hours: float
    flops: float


def _cost_of_study(costs: Mapping[str, Cost], trainings: Mapping[str, int]) -> StudyCost:
    hours = 0.0
    flops = 0.0
    for name, cost in costs.items():
        hours += cost.hours * trainings[name]
        flops += cost.flops.total * cost.run.tokens * trainings[name]
    return StudyCost(hours, flops)


def _on_this_cpu(flops: float, starting: float) -> str:
    """Return how long all trainings take on this machine, given the hours that their processes need to start."""
    rate = matrix_rate()
    computing = flops / (CPU_FRACTION * rate) / 3600
    return (
        f"On this machine, which has no GPU, about {duration(computing + starting)}: at {CPU_FRACTION:.0%} of the "
        f"{rate / 1e9:.0f} GFLOP/s that all cores reach now in float32."
    )


def _measured_lengths(runs: Mapping[str, TrainingRun]) -> list[str]:
    """Return a sentence for each model whose layers are those of ``transformers``, after training it for a moment."""
    machine = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sentences = []
    for name, run in runs.items():
        if run.is_wrapped:
            length = duration(measured_hours(run, machine))
            sentences.append(
                f"{name}: {length} per training on this machine, which the figures below lack. {MEASURED_UPDATES} "
                "updates were measured, because no formula describes the layers of transformers."
            )
    return sentences


def equal_starts(plan: Plan) -> list[str]:
    """Return a sentence for each model whose seeds all start from the weights of one model."""
    sentences = []
    for model in plan.models:
        seeds = len(model.all_seeds)
        if model.start is not None and seeds > 1:
            sentences.append(
                f"{model.name}: its {seeds} seeds start from equal weights, those of {model.start}. They differ in "
                "masks, dropout and the order of the text."
            )
    return sentences


def _row(name: str, trainings: int, cost: Cost | None) -> list[str]:
    """Return a row of the table: tokens, parameters, memory and hours of a training, and the hours of all trainings."""
    if cost is None:
        return [name, str(trainings), "-", "-", "-", "-", "-"]
    cells = []
    for number in (cost.run.tokens / 1e6, cost.parameters.total / 1e6, cost.memory_total / 1e9):
        cells.append(f"{number:,.1f}" if number >= 1 else f"{number:.2g}")
    return [name, str(trainings), *cells, duration(cost.hours), duration(cost.hours * trainings)]


def _without_estimate(plan: Plan) -> str:
    """Return what takes time beside the trainings."""
    measures = [f"{planned.name} after {planned.checkpoints(plan.checkpoints)} updates" for planned in plan.measures]
    listed = ", ".join(measures) or "measures, of which there are none"
    if plan.rates and plan.rates.halve:
        listed += "; rates that are halved"
    return listed


def count_trainings(plan: Plan, model: Model) -> int:
    """Return the number of trainings of a model, without those at halved learning rates."""
    if model.random:
        return 0
    seeds = len(model.all_seeds)
    further_rates = model.learning_rates[1:]
    if not further_rates:
        return seeds
    return seeds + len(further_rates) * min(seeds, plan.rates.seeds)
