"""Processes that torchrun, Slurm or a user has started, and that train together."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from torch import nn

from mae_lm_fairseq.fairseq_patches.patching import patch, replaced, wrap
from mae_lm_fairseq.fairseq_patches.preemption import ask_to_end
from mae_lm_fairseq.utils.workers import environment_of

_PORT = 29500
"""torchrun's default."""
DDP_TIMEOUT = 600
"""Default of ``--ddp-timeout`` in seconds, long enough for a slow save."""


class StartedProcesses(NamedTuple):
    """The processes of a job, as one of them sees it.

    Attributes:
        rank: number of this one, from 0.
        port: port on the first node of a job of Slurm; None if the environment has the address.
    """

    number: int
    rank: int
    port: int | None = None


def started_processes() -> StartedProcesses | None:
    """Return the job that this process belongs to; None if it is alone.

    ``torchrun`` describes it by ``MASTER_ADDR``, ``MASTER_PORT``, ``RANK`` and ``WORLD_SIZE``, which a user may also
    set, and ``srun`` by variables of Slurm.
    """
    variables = os.environ
    port = None
    if {"MASTER_ADDR", "RANK", "WORLD_SIZE"} <= variables.keys():
        variables.setdefault("MASTER_PORT", str(_PORT))
        number = int(variables["WORLD_SIZE"])
        rank = int(variables["RANK"])
    elif "SLURM_STEP_NUM_TASKS" in variables:
        number = int(variables["SLURM_STEP_NUM_TASKS"])
        rank = int(variables["SLURM_PROCID"])
        job = int(variables["SLURM_JOB_ID"])
        step = int(variables.get("SLURM_STEP_ID", 0))
        port = 10_000 + (job + 7919 * step) % 50_000  # steps of one job may run side by side on a node, as jobs may
    else:
        return None
    return StartedProcesses(number, rank, port) if number > 1 else None


def _first_node() -> str:
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    nodes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return nodes.split()[0]


def join_started_processes(cfg: Any) -> None:
    """Let the processes that torchrun, Slurm or a user has started train together, with or without GPUs.

    fairseq looks for them only if it counts several GPUs, and for Slurm's only if a port is given. Otherwise each
    process would train alone and overwrite the others' checkpoints. Without GPUs the gradients are exchanged over gloo.
    With ``--cpu``, a process alone does not start one for each GPU.
    """
    distributed = cfg.distributed_training
    started = started_processes()
    if started is None:
        by_default = distributed.distributed_world_size == torch.cuda.device_count()
        if cfg.common.cpu and by_default and distributed.distributed_init_method is None:
            distributed.distributed_world_size = 1
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    distributed.distributed_world_size = started.number
    if not cfg.common.cpu and torch.cuda.is_available():
        if distributed.distributed_port <= 0 and started.port is not None:
            _first_node()  # without it, fairseq would train in each process alone
            distributed.distributed_port = started.port
        return
    if not distributed.distributed_init_method:
        method = "env://" if started.port is None else f"tcp://{_first_node()}:{started.port}"
        distributed.distributed_init_method = method
    distributed.distributed_rank = started.rank
    distributed.device_id = 0
    distributed.distributed_no_spawn = True
    distributed.distributed_backend = "gloo"


def gpus_hidden(cfg: Any) -> AbstractContextManager:
    """Return a context that hides the GPUs from torch with ``--cpu``, before it is asked for them.

    Despite ``--cpu``, fairseq's gradient clipping and communication, and apex, would use a GPU that torch finds.
    """
    return environment_of({"CUDA_VISIBLE_DEVICES": ""}) if cfg.common.cpu else nullcontext()


def _end_with(parent: int) -> None:
    """End this process and its data workers once ``torchrun`` has ended; killed by a signal, it leaves them behind.

    A training saves the update in progress first, unless that takes too long, as after the end of another process.
    """
    while os.getppid() == parent:
        time.sleep(1)
    if ask_to_end():
        time.sleep(DDP_TIMEOUT)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@patch(distributed_utils, "_infer_slurm_init")
def need_a_job_step(infer: Callable, cfg: Any, pipelines: int | None) -> bool:
    """Take Slurm's variables for those of several processes in a job step only, which ``srun`` starts.

    Elsewhere in a job, as in a batch script, fairseq took the script for the first process, and failed or waited for
    the others. Now it uses the GPUs of the node. And of a task that sees one GPU, it took the number on the node for
    that of the GPU.
    """
    is_step = "SLURM_STEP_NUM_TASKS" in os.environ and infer(cfg, pipelines)
    if is_step and torch.cuda.device_count() == 1:
        cfg.device_id = 0
    return is_step


def limit_waiting() -> None:
    """Pass ``--ddp-timeout`` to ``torch.distributed``.

    fairseq passes none, so that over gloo a process waits half an hour for one that cannot be reached any more.
    """
    wrap(distributed_utils, "distributed_init", _init_with_timeout)
    wrap(distributed_utils, "new_groups", _with_timeout)
    wrap(distributed_utils, "get_global_group", _with_timeout)


_timeout = {"timeout": timedelta(seconds=DDP_TIMEOUT)}
"""Timeout of the job that this process belongs to: groups of processes, which are made later, do not inherit it."""


def _init_with_timeout(init: Callable, cfg: Any) -> int:
    seconds = getattr(cfg.task, "ddp_timeout", DDP_TIMEOUT)
    _timeout["timeout"] = timedelta(seconds=seconds)
    limited = partial(torch.distributed.init_process_group, **_timeout)
    with replaced(torch.distributed, "init_process_group", limited):
        return init(cfg)


def _with_timeout(make_group: Callable, *args: Any) -> Any:
    limited = partial(torch.distributed.new_group, **_timeout)
    with replaced(torch.distributed, "new_group", limited):
        return make_group(*args)


@patch(distributed_fairseq_model, "DistributedDataParallel")
def use_pytorch_ddp_without_gpus(ddp: Callable, module: nn.Module, **options) -> nn.Module:
    """Let ``--ddp-backend pytorch_ddp``, the default, work on CPUs; fairseq always gives it the number of a GPU."""
    if next(module.parameters()).device.type == "cpu":
        options |= {"device_ids": None, "output_device": None}
    return ddp(module=module, **options)
