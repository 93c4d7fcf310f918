"""GPUs that CUDA cannot use, on simulated machines."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.training import pretrain
from mae_lm_fairseq.training.command import in_background
from mae_lm_fairseq.utils import gpus
from mae_lm_fairseq.utils.errors import UserError
from tests.support.fairseq_commands import config

A100 = "NVIDIA A100-SXM4-80GB"
OLD = f"{A100}, 535.104.05"
TOO_OLD = (
    rf"CUDA 13\.0 of torch \S+ cannot use {A100} with driver 535\.104\.05, which is too old; update the driver to 580 "
    "or newer, or install a torch that was built for an older CUDA"
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return ``pretend(cuda, smi, code)``: torch's CUDA, which finds no GPU, and output and code of nvidia-smi.

    Without ``smi``, the program does not exist. ``files`` are GPUs in /dev.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def pretend(cuda="13.0", smi=None, code=0, files=()):
        def run(command, **options):
            assert command[0] == "nvidia-smi"
            if smi is None:
                raise FileNotFoundError(command[0])
            return SimpleNamespace(returncode=code, stdout=smi, stderr="")

        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(gpus, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))
        monkeypatch.setattr(gpus.glob, "glob", lambda pattern: list(files))

    return pretend


def test_a_driver_that_is_too_old(machine):
    machine(smi=f"{OLD}\n{OLD}\n")
    with pytest.raises(UserError, match=f'^{TOO_OLD}, or train on the CPU, with --cpu or CUDA_VISIBLE_DEVICES=""$'):
        gpus.check_gpu()


def test_torch_without_cuda(machine):
    machine(cuda=None, smi=f"{OLD}\n")
    problem, remedy = gpus.unusable_gpu()
    assert f"built without CUDA, and this machine has {A100}" in problem
    assert "install a torch that was built for CUDA" in remedy


@pytest.mark.parametrize(("cuda", "driver"), [("13.0", "580.65.06"), ("12.6", "535.104.05"), ("14.0", "535.104.05")])
def test_another_reason_is_torchs(machine, monkeypatch, cuda, driver):
    def init():
        raise RuntimeError("CUDA unknown error\nmore")

    machine(cuda, f"{A100}, {driver}\n")
    monkeypatch.setattr(torch.cuda, "init", init)
    problem, remedy = gpus.unusable_gpu()
    assert problem.endswith(f"cannot use {A100} with driver {driver}: CUDA unknown error")
    assert "restart" in remedy


@pytest.mark.parametrize("files", [("/dev/nvidia0",), ()])
@pytest.mark.parametrize("smi", [None, "Failed to initialize NVML: Driver/library version mismatch"])
def test_without_a_working_nvidia_smi_device_files_count(machine, smi, files):
    """A container without a GPU has none of them, although it sees the version of the machine's driver."""
    machine(cuda=None, smi=smi, code=18, files=files)
    assert bool(gpus.unusable_gpu()) is bool(files)


def test_gpus_of_other_jobs_do_not_count(machine):
    machine(smi="No devices were found", code=6, files=["/dev/nvidia0"])
    assert gpus.unusable_gpu() is None


@pytest.mark.parametrize(("value", "is_chosen"), [("", True), ("-1", True), ("0", False), ("0,1", False)])
def test_gpus_may_be_hidden(machine, monkeypatch, value, is_chosen):
    machine(smi=f"{OLD}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert (gpus.unusable_gpu() is None) is is_chosen


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        ("sm_75 sm_80 sm_86 sm_90", (7, 0), False),  # V100
        ("sm_75 sm_80 sm_86 sm_90", (8, 9), True),  # within a major version
        ("sm_80 sm_86", (8, 0), True),
        ("sm_86", (8, 0), False),
        ("sm_80 sm_90a", (9, 0), True),
        ("sm_80 sm_90", (12, 0), False),
        ("sm_90 compute_100", (12, 0), True),  # compiled when it is loaded
        ("", (7, 0), True),  # unknown
    ],
)
def test_kernels_for_a_gpu(machine, monkeypatch, built_for, capability, runs):
    machine()
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "get_arch_list": built_for.split(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Tesla V100")
    found = gpus.unusable_gpu()
    assert (found is None) is runs
    if found:
        assert f"no kernels for Tesla V100, of compute capability {capability[0]}.{capability[1]}" in found.problem


def test_training_starts_on_the_cpu_if_asked_to(machine):
    machine(smi=f"{OLD}\n")
    with pytest.raises(UserError, match=f"^--cpu is needed to train on the CPU of this machine: {TOO_OLD}$"):
        check_settings(config())
    check_settings(config("--cpu"))


def test_trainings_in_the_background_do_not_fall_back_to_the_cpu(machine):
    machine(smi=f"{OLD}\n")
    with pytest.raises(UserError, match=TOO_OLD):
        in_background()
    machine(smi="No devices were found", code=6)
    assert in_background()["common"]["cpu"]


def test_pretrain_says_so_before_it_loads_fairseq(machine, monkeypatch, tmp_path):
    machine(smi=f"{OLD}\n")
    monkeypatch.setattr(pretrain, "configure", lambda *arguments: 1 / 0)
    options = {"preset": "mae_lm_tiny", "data_bin": str(tmp_path), "save_dir": "saved"}
    with pytest.raises(UserError, match=TOO_OLD):
        pretrain.pretrain(pretrain.PretrainOptions(**options))
    with pytest.raises(ZeroDivisionError):
        pretrain.pretrain(pretrain.PretrainOptions(**options, flags=("--cpu",)))
