"""Machine-dependent parts of a recipe: number of processes, batch size per process, and precision."""

from copy import deepcopy
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from mae_lm_fairseq.fairseq_patches.started_processes import join_started_processes
from mae_lm_fairseq.utils.errors import UserError


def processes(cfg: DictConfig) -> tuple[int, int]:
    """Return the number of training processes, and the rank of this one (of the first one that it starts)."""
    cfg = deepcopy(cfg)
    join_started_processes(cfg)
    distributed = cfg.distributed_training
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
            f"{number_of_processes} processes; set --update-freq, or choose another --batch-size or number of processes"
        )
    return batch_size, accumulated
