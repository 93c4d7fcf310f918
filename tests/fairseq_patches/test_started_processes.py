"""Processes that something else has started: torchrun, Slurm, or a user."""

import os
from datetime import timedelta

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import OmegaConf

from mae_lm_fairseq.fairseq_patches.processes import _call_main
from mae_lm_fairseq.fairseq_patches.started_processes import DDP_TIMEOUT, join_started_processes, started_processes
from tests.support.fairseq_commands import config

TORCHRUN = {"MASTER_ADDR": "node0", "MASTER_PORT": "29501", "WORLD_SIZE": "4", "RANK": "3"}
SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "node[0-1]"}


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Return a function that sets variables, with a machine that has Slurm and no GPU."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho node0; echo node1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return lambda variables: [monkeypatch.setenv(name, value) for name, value in variables.items()]


def settings(**changes):
    distributed = {"distributed_world_size": 1, "distributed_init_method": None, "distributed_port": -1}
    distributed |= {"distributed_rank": 0, "device_id": 0, "distributed_no_spawn": False}
    distributed |= {"distributed_backend": "nccl", **changes}
    return OmegaConf.create({"common": {"cpu": False}, "distributed_training": distributed})


@pytest.mark.parametrize(
    ("variables", "number", "rank", "address"),
    [
        (TORCHRUN, 4, 3, "env://"),
        ({name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"}, 4, 3, "env://"),
        (SLURM, 2, 1, "tcp://node0:33456"),
        (SLURM | {"SLURM_STEP_ID": "1"}, 2, 1, "tcp://node0:41375"),
    ],
    ids=["torchrun", "by hand", "Slurm", "second step of Slurm"],
)
def test_processes_without_gpus_join_over_gloo(environment, variables, number, rank, address):
    environment(variables)
    cfg = settings()
    join_started_processes(cfg)
    distributed = cfg.distributed_training
    assert (distributed.distributed_world_size, distributed.distributed_rank) == (number, rank)
    assert (distributed.distributed_init_method, distributed.distributed_backend) == (address, "gloo")
    assert distributed.distributed_no_spawn


def test_a_given_init_method_is_kept(environment):
    environment(TORCHRUN)
    cfg = settings(distributed_init_method="file:///tmp/meet")
    join_started_processes(cfg)
    assert cfg.distributed_training.distributed_init_method == "file:///tmp/meet"
    assert cfg.distributed_training.distributed_rank == 3


@pytest.mark.parametrize("variables", [{}, TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "2"}])
def test_a_process_alone(environment, variables):
    environment(variables)
    cfg = settings()
    join_started_processes(cfg)
    assert started_processes() is None
    assert cfg == settings()


def test_a_process_alone_on_the_cpu_of_a_machine_with_gpus(environment, monkeypatch):
    environment({})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    for world_size, expected in ((8, 1), (2, 2)):
        cfg = settings(distributed_world_size=world_size)
        cfg.common.cpu = True
        join_started_processes(cfg)
        assert cfg.distributed_training.distributed_world_size == expected
    by_hand = settings(distributed_world_size=8, distributed_init_method="tcp://node0:29500")
    by_hand.common.cpu = True
    for cfg in (by_hand, settings(distributed_world_size=8)):
        join_started_processes(cfg)
        assert cfg.distributed_training.distributed_world_size == 8


@pytest.mark.parametrize("variables", [{}, TORCHRUN], ids=["alone", "torchrun"])
def test_gpus_are_hidden_before_torch_looks_for_them(environment, monkeypatch, variables):
    """torch reads the variable once. It is restored for the rest of the program."""
    environment(variables)
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    cfg = config("--cpu")
    with pytest.raises(ZeroDivisionError):
        _call_main(lambda cfg: torch.cuda.is_available() or 1 / 0, cfg)
    assert set(seen) == {""}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(("visible", "device"), [(1, 0), (8, 3)])
def test_a_task_of_slurm_takes_one_of_the_gpus_that_it_sees(environment, monkeypatch, visible, device):
    environment(SLURM | {"SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NODEID": "0", "SLURM_LOCALID": "3"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    distributed = config("--distributed-world-size", "8", "--distributed-port", "12345").distributed_training
    distributed_utils.infer_init_method(distributed)
    assert distributed.device_id == device


@pytest.mark.parametrize("tasks", ["SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"])
def test_a_batch_script_of_slurm_is_no_task(environment, monkeypatch, tasks):
    """Without ``srun``, the GPUs of its node train; no other process is waited for."""
    environment({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "1", tasks: "8"})
    environment({"SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    distributed = config("--distributed-world-size", "8").distributed_training
    distributed_utils.infer_init_method(distributed)
    assert distributed.distributed_init_method.startswith("tcp://localhost:")
    assert not distributed.distributed_no_spawn
    assert (distributed.distributed_world_size, distributed.distributed_num_procs) == (8, 8)


@pytest.mark.parametrize(("variables", "number", "port"), [(TORCHRUN, 4, -1), (SLURM, 2, 33456)])
def test_fairseq_joins_processes_with_gpus(environment, monkeypatch, variables, number, port):
    """Also if each machine has one GPU."""
    environment(variables)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cfg = settings()
    join_started_processes(cfg)
    assert cfg == settings(distributed_world_size=number, distributed_port=port)


@pytest.mark.parametrize(("task", "seconds"), [({"ddp_timeout": 20}, 20), ({}, DDP_TIMEOUT)])
def test_timeout_reaches_torch(monkeypatch, task, seconds):
    group_options = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **options: group_options.update(options))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    cfg = settings(distributed_init_method="env://")
    distributed_utils.distributed_init(
        OmegaConf.merge(cfg, {"common": {"tpu": False, "model_parallel_size": 1}, "task": task})
    )
    assert group_options["timeout"] == timedelta(seconds=seconds)


def test_pytorch_ddp_gets_no_gpu_for_a_model_on_the_cpu(monkeypatch):
    ddp_options = {}
    inner = distributed_fairseq_model.DistributedDataParallel.__wrapped__
    monkeypatch.setattr(inner, "__init__", lambda self, **options: ddp_options.update(options))
    distributed_fairseq_model.DistributedDataParallel(module=torch.nn.Linear(2, 2), device_ids=[0], output_device=0)
    assert ddp_options["device_ids"] is ddp_options["output_device"] is None
