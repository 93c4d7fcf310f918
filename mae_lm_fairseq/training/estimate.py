"""Length of a training before it starts: epochs of the text, and hours by the cost planner; and warnings."""

import contextlib
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.planned_run import PlannedRun, kind_of_gpu
from mae_lm_fairseq.cost.planner import flops_per_token, hours
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.tasks.masking_rates import variable_rate
from mae_lm_fairseq.text.data_bin import DICTIONARY, count_tokens
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.training.settings import tokens_per_update
from mae_lm_fairseq.training.timing import MEASURED_UPDATES, measured_hours
from mae_lm_fairseq.utils.errors import UserError

CPU_FRACTION = 0.5
"""Assumed fraction of a CPU's rate of matrix products that training reaches."""
MATRIX = 1024


def warnings_about(cfg: Any) -> Iterator[str]:
    """Yield a warning if a training ends before its learning rate has decayed, or if transformers lacks its model."""
    updates = cfg.optimization.max_update
    total = getattr(cfg.lr_scheduler, "total_num_update", 0)
    if 0 < updates < total:
        yield (
            f"--max-update {updates} ends the training before the learning rate has decayed, which it does at "
            f"--total-num-update {total:.0f}; add --total-num-update {updates}"
        )
    if cfg.model.pre_norm and cfg.model.relative_buckets:
        yield (
            "mae-lm export and mae-lm adapt refuse models of --pre-norm with a relative position bias, which "
            "transformers has no class for; --relative-buckets 0 leaves the bias out"
        )


def describe_length(cfg: Any, processes: int, data: Sequence[Path], may_measure: bool = False) -> Iterator[str]:
    """Yield sentences on a training: its epochs of the text and its duration, and what a kill costs at most.

    Args:
        may_measure: whether some updates may be computed, if no formula describes the network.
    """
    updates = cfg.optimization.max_update
    if not updates:
        yield "no estimate of the duration: --max-update does not limit it"
        return
    try:
        in_hours, where = _estimate(cfg, processes, data[0], may_measure)
    except ValueError as problem:  # a training that the planner does not describe may still be what the user wants
        yield _epochs(cfg, processes, data) + f"no estimate of the duration: {problem}"
        return
    yield _epochs(cfg, processes, data) + f"about {duration(in_hours)} {where}"
    interval = cfg.checkpoint.save_interval_updates
    if interval:
        at_risk = duration(in_hours * interval / updates)
        yield f"a checkpoint every {interval:,} updates: a kill costs at most about {at_risk} of training"


def _epochs(cfg: Any, processes: int, data: Sequence[Path]) -> str:
    """Return the beginning of a sentence: the epochs of the text; empty if its tokens cannot be counted."""
    try:
        tokens_of_text = sum(count_tokens(shard / "train") for shard in data)
    except UserError:  # not the format of mae-lm prepare and fairseq-preprocess; fairseq-train says what is wrong
        return ""
    repeats = getattr(cfg.task, "repeat_tokens", 1)
    tokens = tokens_per_update(cfg, processes) * cfg.optimization.max_update / repeats
    epochs = tokens / tokens_of_text
    return f"at most {epochs:,.3g} epochs of this text ({tokens_of_text:,} tokens); "


def _estimate(cfg: Any, processes: int, data_bin: Path, may_measure: bool) -> tuple[float, str]:
    is_gpu = torch.cuda.is_available() and not cfg.common.cpu
    kind = kind_of_gpu(torch.cuda.get_device_properties(0)) if is_gpu else None
    run = planned_run(
        cfg,
        vocabulary_size(data_bin),
        cfg.optimization.max_update,
        devices=processes,
        kind=kind or PlannedRun.device_kind,
        precision=planned_precision(cfg),
    )
    if run.is_wrapped:
        if not may_measure:
            raise ValueError("no formula describes the layers of transformers; --dry-run measures them")
        device = torch.device("cuda" if is_gpu else "cpu")
        return measured_hours(run, device), f"on this machine, measured by {MEASURED_UPDATES} updates"
    flops = flops_per_token(run)
    if is_gpu:
        name = kind or f"GPU, as {PlannedRun.device_kind}"
        rate = f"{run.mfu:.0%} of their {run.peak / 1e12:.0f} TFLOP/s in {run.precision}"
        return hours(run, flops), f"on {run.devices} x {name} at {rate}"
    rate = matrix_rate()
    where = f"on this CPU, at {CPU_FRACTION:.0%} of its {rate / 1e9:.0f} GFLOP/s of matrix products"
    return run.tokens * flops.total / (CPU_FRACTION * rate) / 3600, where


def planned_precision(cfg: Any) -> str:
    """Return the precision of a configuration of fairseq-train by its name in the planner."""
    for name in ("fp16", "bf16"):
        if cfg.common[name]:
            return name
    return "fp32" if cfg.model.autocast == "none" else "autocast"


@dataclass(frozen=True, kw_only=True)
class TrainingRun(PlannedRun):
    """A training whose network need not be that of its preset."""

    own_network: MaskedAutoencoderConfig
    attention: AttentionBackend = AttentionBackend.fused

    @property
    def has_fused_attention(self) -> bool:
        """Whether attention is that of the fused kernel; the scores of others are counted as written out."""
        return self.attention is AttentionBackend.fused

    @property
    def is_wrapped(self) -> bool:
        """Whether the layers are those of ``transformers``, which no formula of this package describes."""
        return self.own_network.wrapped is not None

    def network_config(self) -> MaskedAutoencoderConfig:
        """Return the network configuration of the training."""
        return self.own_network


def planned_run(
    cfg: Any,
    vocabulary: int,
    updates: int,
    *,
    devices: int = 1,
    kind: str = PlannedRun.device_kind,
    precision: str = PlannedRun.precision,
) -> TrainingRun:
    """Return a training for the cost planner.

    Args:
        precision: one of :data:`~mae_lm_fairseq.cost.planned_run.PRECISION_NAMES`.

    Raises:
        ValueError: if so little is masked that no token of a sequence is.
    """
    length = cfg.task.tokens_per_sample
    limits = []
    if cfg.dataset.batch_size is not None:
        limits.append(cfg.dataset.batch_size)
    if cfg.dataset.max_tokens is not None:
        limits.append(cfg.dataset.max_tokens // length)
    batch_size = max(1, min(limits))
    accumulated = int(cfg.optimization.update_freq[0])

    rate = variable_rate(cfg.task) if hasattr(cfg.task, "mask_prob_range") else None
    predicted_as_mask = 1 - cfg.task.leave_unmasked_prob - cfg.task.random_token_prob
    mask_in_encoder = float(getattr(cfg.task, "mask_in_encoder", 0.0))
    return TrainingRun(
        preset=cfg.model._name,
        mask_prob=cfg.task.mask_prob if rate is None else rate.mean(updates),
        mask_in_encoder=1 - predicted_as_mask * (1 - mask_in_encoder),
        vocab_size=vocabulary,
        tokens_per_sample=length,
        batch_size=batch_size,
        update_freq=accumulated,
        tokens=updates * batch_size * accumulated * devices * length,
        devices=devices,
        device_kind=kind,
        precision=precision,
        own_network=core_config(cfg.model),
    )


def tokens_and_flops(cfg: Mapping[str, Any], data_bin: Path, updates: int) -> dict[str, float | None]:
    """Return the tokens of a training with full sequences, and its FLOPs; None if no formula describes the model.

    Args:
        cfg: the configuration of fairseq-train, or that of a checkpoint.
    """
    cfg = OmegaConf.create(cfg, flags={"allow_objects": True})
    cost = {"tokens": updates * tokens_per_update(cfg, processes=1), "flops": None}
    with contextlib.suppress(ValueError):
        run = planned_run(cfg, vocabulary_size(data_bin), updates)
        if not run.is_wrapped:
            cost["flops"] = run.tokens * flops_per_token(run).total
    return cost


def vocabulary_size(data_bin: Path) -> int:
    """Return the size of a data-bin's dictionary; the planner's default if the data-bin does not exist yet."""
    dictionary = data_bin / DICTIONARY
    return len(read_symbols(dictionary)) if dictionary.exists() else PlannedRun.vocab_size


@cache
def matrix_rate() -> float:
    """Return the FLOP/s of a float32 matrix product on all cores, measured in a fraction of a second."""
    matrix = torch.ones(MATRIX, MATRIX)
    seconds = timeit.repeat(lambda: matrix @ matrix, number=1, repeat=5)
    return 2 * MATRIX**3 / min(seconds)


def duration(hours: float) -> str:
    """Format a duration in hours, minutes or seconds."""
    if hours >= 1:
        number, unit = hours, "h"
    elif 60 * hours >= 1:
        number, unit = 60 * hours, "min"
    else:
        number, unit = 3600 * hours, "s"
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
