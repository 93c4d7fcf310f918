"""What a recipe leaves to the machine: how many processes there are, what each one's batch is, and the precision."""

import os
from copy import deepcopy
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from mae_lm_fairseq.utils.errors import UserError


def meeting(cfg: DictConfig) -> dict[str, Any]:
    """fairseq's options to join the processes that torchrun, or srun with several tasks, has started.

    fairseq finds them by itself only where it sees two GPUs or more, and Slurm's only when it is given a port; with
    one GPU a node each process would train alone. On a CPU scripts/launch_cpu.py starts the processes.
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
    """How many processes will train together, and the rank of this one (the first of those that it starts)."""
    distributed = deepcopy(cfg.distributed_training)
    distributed_utils.infer_init_method(distributed)
    return distributed.distributed_world_size, distributed.distributed_rank or 0


def precision(cfg: DictConfig) -> dict[str, Any]:
    """fp16 on a GPU, unless a precision was chosen."""
    chosen = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")
    if cfg.common.cpu or not torch.cuda.is_available() or cfg.model.autocast != "none":
        return {}
    return {} if any(cfg.common[name] for name in chosen) else {"fp16": True}


def share(sequences: int, number_of_processes: int, batch_size: int, smaller: bool) -> tuple[int, int]:
    """Sequences in one process's batch and batches that it accumulates, so that an update takes ``sequences`` in all.

    Args:
        sequences: of an update, over all processes.
        number_of_processes: that train together.
        batch_size: sequences in a batch of one process.
        smaller: whether the batch may be smaller where there are many processes.

    Raises:
        UserError: that number of sequences cannot be divided like this.
    """
    if smaller:
        batch_size = max(1, min(batch_size, sequences // number_of_processes))
    accumulated, rest = divmod(sequences, batch_size * number_of_processes)
    if rest or not accumulated:
        raise UserError(
            f"an update takes {sequences:,} sequences, which cannot be shared equally by batches of {batch_size} in "
            f"{number_of_processes} processes: give another --batch-size, or with --update-freq change the number"
        )
    return batch_size, accumulated
