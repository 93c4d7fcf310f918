"""GPUs that CUDA cannot use, on simulated machines: training must not fall back to the CPU without a word."""

import subprocess

import pytest
import torch

from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.training.command import unattended_settings
from mae_lm_fairseq.utils import gpus
from tests.support.fairseq_commands import config
from tests.support.refusals import refused

SMI = "NVIDIA A100-SXM4-80GB, 535.104.05\nNVIDIA A100-SXM4-80GB, 535.104.05\n"
PROBLEM = r"torch \S+ \(CUDA 13\.0\) cannot use {} with driver {}: CUDA unknown error; update .*"
UNUSABLE = PROBLEM.format("NVIDIA A100-SXM4-80GB", r"535\.104\.05")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return ``pretend(smi, *files)``: a machine whose GPU torch cannot use, if there is one.

    ``smi`` is the output of nvidia-smi, empty if it fails, None if it is not installed; ``files`` are in ``/dev``.
    """

    def init():
        raise RuntimeError("CUDA unknown error\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)

    def pretend(smi=None, *files):
        def run(command, **options):
            assert command[0] == "nvidia-smi"
            if smi is None:
                raise FileNotFoundError(command[0])
            if not smi:
                raise subprocess.CalledProcessError(6, command)
            return subprocess.CompletedProcess(command, 0, smi)

        monkeypatch.setattr(gpus.subprocess, "run", run)
        for file in files:
            (tmp_path / file).touch()

    return pretend


def test_a_gpu_that_cuda_cannot_use(machine):
    machine(SMI)
    with refused(f'^{UNUSABLE}, or train on the CPU, with --cpu or CUDA_VISIBLE_DEVICES=""$'):
        gpus.check_gpu()


@pytest.mark.parametrize("smi", [None, "", "No devices were found"])
def test_a_device_file_is_a_gpu_too(machine, smi, tmp_path):
    machine(smi, "nvidiactl", "nvidia-uvm")
    gpus.check_gpu()
    machine(smi, "nvidia0")
    with refused(f"^{PROBLEM.format(tmp_path / 'nvidia0', 'unknown')}"):
        gpus.check_gpu()


@pytest.mark.parametrize(("value", "is_chosen"), [("", True), ("-1", True), ("0", False), ("0,1", False)])
def test_gpus_may_be_hidden(machine, monkeypatch, value, is_chosen):
    machine(SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert (gpus.unusable_gpu() is None) is is_chosen


def test_training_starts_on_the_cpu_if_asked_to(machine):
    machine(SMI)
    with refused(f"^--cpu is needed to train on the CPU of this machine: {UNUSABLE}$"):
        check_settings(config())
    check_settings(config("--cpu"))
    with refused(UNUSABLE):
        unattended_settings()
