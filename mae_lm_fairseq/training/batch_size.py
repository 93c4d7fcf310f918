"""Sequences per batch of a training on GPUs: those of its checkpoint, or what the planner puts into the memory."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend, fastest_backend
from mae_lm_fairseq.cost.planner import BatchMemory, batch_memory
from mae_lm_fairseq.fairseq_patches.resuming import saved_batch_size
from mae_lm_fairseq.training.estimate import TrainingRun, planned_precision, planned_run
from mae_lm_fairseq.utils.errors import first_line

MEMORY_FRACTION = 0.7
"""Fraction of a GPU that the planned memory may fill. CUDA, the allocator and uneven batches need the rest."""


class BatchSize(NamedTuple):
    """Sequences per batch of one process."""

    sequences: int
    reasons: tuple[str, ...] = ()
    """A sentence that says why, unless the user or a CPU's recipe chose it."""
    warnings: tuple[str, ...] = ()


def batch_size_on_gpus(cfg: Any, vocabulary: int, processes: int, per_process: int) -> BatchSize:
    """Return the batch size of a training on GPUs whose user chose none.

    Args:
        cfg: the configuration of fairseq-train, with the recipe's batch size.
        per_process: sequences per update of one process.
    """
    if saved := saved_batch_size(cfg.checkpoint):
        before, path = saved
        sequences = min(before, per_process)
        return BatchSize(sequences, (f"{sequences} sequences per batch: {path} was trained with {before}",))
    default = cfg.dataset.batch_size
    try:
        memory = batch_memory(training_run(cfg, vocabulary, processes))
    except Exception as problem:  # code of --user-dir may read values, which the planner's tensors do not have
        reason = f"{default} sequences per batch, without an estimate of the memory: {first_line(problem)}"
        return BatchSize(default, (reason,))
    return planned_batch_size(memory, default, per_process)


def planned_batch_size(memory: BatchMemory, default: int, per_process: int) -> BatchSize:
    """Return the largest power of two of sequences that divides those of a process and fits the smallest GPU.

    Args:
        default: batch size if not even one sequence fits.
        per_process: sequences per update of one process.
    """
    available = smallest_memory()
    fitting = memory.largest_batch(MEMORY_FRACTION * available)
    largest_divisor = per_process & -per_process
    sequences = min(fitting, largest_divisor) or 1
    planned = memory.total(sequences) / 1e9
    reason = f"{sequences} sequences per batch: {planned:.0f} of {available / 1e9:.0f} GB by the planner's estimate"
    if fitting:
        return BatchSize(sequences, (reason,))
    return BatchSize(default, warnings=(f"{reason}; training with {default}; add --checkpoint-activations",))


def smallest_memory() -> int:
    """Return the bytes of the visible GPU that has the least memory."""
    numbers = range(torch.cuda.device_count())
    return min(torch.cuda.get_device_properties(number).total_memory for number in numbers)


def training_run(cfg: Any, vocabulary: int, processes: int) -> TrainingRun:
    """Return a training on GPUs as the planner measures its memory, with gradients of earlier batches of the update.

    Optimizers are counted as Adam, whose two moments are the most that one keeps.

    Raises:
        ValueError: if the planner does not describe the training.
    """
    updates = max(1, int(cfg.optimization.max_update))
    precision = planned_precision(cfg)
    run = planned_run(cfg, vocabulary, updates, devices=processes, precision=precision)
    if run.is_wrapped:
        raise ValueError("the planner does not describe the layers of transformers")
    attention = AttentionBackend.fused if cfg.model.compile else AttentionBackend(cfg.model.attention_backend)
    if attention is AttentionBackend.auto:
        attention = fastest_backend(torch.device("cuda"), training=precision != "fp32")
    checkpoint_activations = cfg.model.checkpoint_activations
    return replace(run, update_freq=2, attention=attention, checkpoint_activations=checkpoint_activations)
