"""Machine-dependent parts of a recipe: number of processes, batch size per process, and precision."""

import os
from copy import deepcopy
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from mae_lm_fairseq.utils.errors import UserError


def distributed_options(cfg: DictConfig) -> dict[str, Any]:
    """Return fairseq's options for joining the processes started by torchrun, or by srun with several tasks.

    fairseq detects them only on machines with at least two GPUs, and Slurm's only if a port is given; with one GPU per
    node each process would train alone. On a CPU, ``launch_cpu`` starts the processes.
    """
    if cfg.common.cpu or not torch.cuda.is_available():
        return {}
    if {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"} <= set(os.environ):
        return {"distributed_world_size": int(os.environ["WORLD_SIZE"])}
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks > 1:
        port = 10_000 + int(os.environ["SLURM_JOB_ID"]) % 50_000
        return {"distributed_world_size": tasks, "distributed_port": port}
    return {}


def processes(cfg: DictConfig) -> tuple[int, int]:
    """Return the number of training processes, and the rank of this one (of the first one that it starts)."""
    distributed = deepcopy(cfg.distributed_training)
    distributed_utils.infer_init_method(distributed)
    return distributed.distributed_world_size, distributed.distributed_rank or 0


def precision(cfg: DictConfig) -> dict[str, Any]:
    """Return the option for fp16 on a GPU, unless a precision was chosen."""
    chosen = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")
    if cfg.common.cpu or not torch.cuda.is_available() or cfg.model.autocast != "none":
        return {}
    return {} if any(cfg.common[name] for name in chosen) else {"fp16": True}


def split_global_batch(sequences: int, number_of_processes: int, batch_size: int, smaller: bool) -> tuple[int, int]:
    """Return batch size per process and number of accumulated batches for a global batch of ``sequences``.

    Args:
        sequences: sequences per update, over all processes.
        number_of_processes: number of processes that train together.
        batch_size: sequences per batch of one process.
        smaller: whether the batch may be made smaller if there are many processes.

    Raises:
        UserError: if the sequences cannot be divided equally.
    """
    if smaller:
        batch_size = max(1, min(batch_size, sequences // number_of_processes))
    accumulated, rest = divmod(sequences, batch_size * number_of_processes)
    if rest or not accumulated:
        raise UserError(
            f"{sequences:,} sequences per update cannot be divided into batches of {batch_size} in "
            f"{number_of_processes} processes; choose another --batch-size, or set --update-freq"
        )
    return batch_size, accumulated
