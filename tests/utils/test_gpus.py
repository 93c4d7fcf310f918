"""GPUs that CUDA cannot use, on simulated machines."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.training.command import unattended_settings
from mae_lm_fairseq.utils import gpus
from mae_lm_fairseq.utils.errors import UserError
from tests.support.fairseq_commands import config

A100 = "NVIDIA A100-SXM4-80GB"
OLD = f"{A100}, 535.104.05"
PROBLEM = rf"torch \S+ \(CUDA 13\.0\) cannot use {A100} with driver 535\.104\.05: CUDA unknown error; update .*"


@pytest.fixture
def machine(monkeypatch):
    """Return ``pretend(smi, code)``: torch's CUDA, which finds no GPU, and output and code of nvidia-smi.

    Without ``smi``, the program does not exist.
    """

    def init():
        raise RuntimeError("CUDA unknown error\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def pretend(smi=None, code=0):
        def run(command, **options):
            assert command[0] == "nvidia-smi"
            if smi is None:
                raise FileNotFoundError(command[0])
            return SimpleNamespace(returncode=code, stdout=smi, stderr="")

        monkeypatch.setattr(gpus, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))

    return pretend


def test_a_gpu_that_cuda_cannot_use(machine):
    machine(f"{OLD}\n{OLD}\n")
    with pytest.raises(UserError, match=f'^{PROBLEM}, or train on the CPU, with --cpu or CUDA_VISIBLE_DEVICES=""$'):
        gpus.check_gpu()


@pytest.mark.parametrize(("smi", "code"), [(None, 0), ("No devices were found", 6), ("", 0)])
def test_a_machine_without_a_gpu(machine, smi, code):
    machine(smi, code)
    assert gpus.unusable_gpu() is None


@pytest.mark.parametrize(("value", "is_chosen"), [("", True), ("-1", True), ("0", False), ("0,1", False)])
def test_gpus_may_be_hidden(machine, monkeypatch, value, is_chosen):
    machine(f"{OLD}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert (gpus.unusable_gpu() is None) is is_chosen


def test_training_starts_on_the_cpu_if_asked_to(machine):
    machine(f"{OLD}\n")
    with pytest.raises(UserError, match=f"^--cpu is needed to train on the CPU of this machine: {PROBLEM}$"):
        check_settings(config())
    check_settings(config("--cpu"))


def test_trainings_in_the_background_do_not_fall_back_to_the_cpu(machine):
    machine(f"{OLD}\n")
    with pytest.raises(UserError, match=PROBLEM):
        unattended_settings()
    machine("No devices were found", 6)
    assert unattended_settings()["common"]["cpu"]
