"""Findings of the doctor on environments with known faults."""

import json
import sys
import types
from importlib import metadata

import pytest
import torch

import mae_lm_fairseq
from mae_lm_fairseq import cli, doctor
from mae_lm_fairseq.utils import gpus, versions
from tests.support import ROOT


def hide(monkeypatch, *names: str):
    """Make packages appear as not installed."""
    version = metadata.version

    def without(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)


def pretend(monkeypatch, name: str, version: str):
    """Make a package appear in another version."""
    original = metadata.version
    monkeypatch.setattr(metadata, "version", lambda asked: version if asked == name else original(asked))


def test_the_requirements_are_those_of_setup_py():
    text = (ROOT / "setup.py").read_text()
    for name, (lowest, too_new) in doctor.REQUIRED.items():
        wanted = f"{name}{f'>={lowest}' if lowest else ''}{f',<{too_new}' if too_new else ''}"
        assert f'"{wanted}"' in text


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [("torch", "2.5.1+cu121", "broken"), ("torch", "2.10.0", "works"), ("numpy", "2.6.0", "broken")],
)
def test_versions(monkeypatch, name, version, state):
    pretend(monkeypatch, name, version)
    finding = doctor.package(name)
    assert (finding.state, finding.details) == (state, version)
    assert (name in finding.remedy) is (state == "broken")


def test_missing_packages(monkeypatch):
    hide(monkeypatch, "fairseq-fixed", "transformers")
    assert "pip install 'fairseq-fixed>=0.12.3.1'" in doctor.package("fairseq-fixed").remedy
    assert doctor.package("transformers").state == "absent"


def test_fairseq_of_another_project(monkeypatch):
    hide(monkeypatch, "fairseq")
    assert doctor.old_fairseq() is None
    pretend(monkeypatch, "fairseq", "0.12.2")
    assert "pip uninstall fairseq" in doctor.old_fairseq().remedy


def test_fairseq_compiled_for_another_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq.data.data_utils_fast", None)
    finding = doctor.compiled_fairseq()
    assert finding.state == "broken"
    assert "--no-cache-dir fairseq-fixed" in finding.remedy


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    """Return ``make(name, line)``, which shadows a module by one that consists of this line."""

    def make(name: str, line: str):
        (tmp_path / f"{name}.py").write_text(line)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(sys.modules, name, None)  # so that it is restored after the test
        del sys.modules[name]

    return make


def test_torchaudio_of_another_torch(broken_module):
    broken_module("torchaudio", "raise OSError('undefined symbol')")
    finding = doctor.torchaudio()
    assert finding.state == "absent"
    assert "undefined symbol" in finding.details
    assert "pip uninstall torchaudio" in finding.remedy
    assert doctor.torchaudio() is None  # transformers, which is checked next, does not find it


def test_apex_of_another_project(broken_module):
    broken_module("apex", "")
    assert "pip uninstall apex" in doctor.apex().remedy


def test_two_copies(tmp_path, monkeypatch):
    (tmp_path / "mae_lm_fairseq").mkdir()
    (tmp_path / "mae_lm_fairseq/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    finding = doctor.one_copy()
    assert finding.state == "broken"
    assert str(tmp_path) in finding.details


@pytest.mark.parametrize("part", ["models.mae_lm", "criterions.masked_autoencoder_lm"])
def test_a_part_that_does_not_import(monkeypatch, part):
    """For example with a version of torch that lacks something."""
    monkeypatch.setattr(mae_lm_fairseq, "_registered", False)
    monkeypatch.setitem(sys.modules, f"mae_lm_fairseq.{part}", None)
    finding = doctor.one_copy()
    assert finding.state == "broken"
    assert part in finding.details


def test_little_shared_memory(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=64 << 20))
    monkeypatch.setattr(doctor.os.path, "isdir", lambda path: True)
    assert "--num-workers 0" in doctor.shared_memory().remedy


@pytest.mark.parametrize(
    ("speed", "details"), [(1 / 60, "60 times slower than float32 on this CPU"), (2.0, "--cpu --autocast bf16")]
)
def test_bfloat16_on_a_cpu(monkeypatch, speed, details):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(versions, "bfloat16_speed", lambda: speed)
    finding = doctor.bf16()
    assert (finding.state, finding.details) == ("works", details)
    assert ("without --autocast bf16" in finding.remedy) is (speed < 1)


def test_gpus_that_cuda_cannot_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpus, "unusable_gpu", lambda: gpus.UnusableGPU("too old", "update the driver"))
    assert doctor.gpu() == doctor.Finding("GPU", "broken", "too old", "update the driver")
    monkeypatch.setattr(gpus, "unusable_gpu", lambda: None)
    assert doctor.gpu().state == "absent"


def test_what_the_doctor_reads_of_gpus(monkeypatch):
    kinds = [("NVIDIA H100 80GB HBM3", 85_029_158_912, 9, 0), ("NVIDIA L40S", 47_697_362_944, 8, 9)]
    found = [
        types.SimpleNamespace(**dict(zip(("name", "total_memory", "major", "minor"), x, strict=True))) for x in kinds
    ]
    monkeypatch.setattr(gpus, "unusable_gpu", lambda: None)
    monkeypatch.setattr(gpus, "gpu_and_driver", lambda: ("NVIDIA H100 80GB HBM3", "580.65.06"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name, result in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_properties": found.__getitem__,
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "nccl": types.SimpleNamespace(version=lambda: (2, 27, 7)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, result)
    assert doctor.gpu() == doctor.Finding(
        "GPU",
        "works",
        "NVIDIA H100 80GB HBM3 (85 GB, compute capability 9.0), NVIDIA L40S (48 GB, compute capability 8.9); "
        "driver 580.65.06, CUDA 13.0, NCCL 2.27.7; torch was built for sm_80 sm_90",
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiles_for_the_training_device(monkeypatch, device):
    used, ones = [], torch.ones
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch, "ones", lambda size, device: used.append(device) or ones(size))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert doctor.compilation() == doctor.Finding("torch.compile", "works", f"--compile, on {device}")
    assert used == [device]


def test_the_attention_kernel_of_a_gpu(monkeypatch):
    assert doctor.fused_attention() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    found = doctor.fused_attention()
    assert (found.state, found.remedy) == ("absent", "training takes sdpa, which is slower")
    assert "compute capability 8.0" in found.details
    monkeypatch.setattr("mae_lm_fairseq.core.attention_backends.problem_of_fused", lambda device: None)
    assert doctor.fused_attention().state == "works"


def test_a_failing_examination_is_a_finding(monkeypatch, capsys):
    def gpu():
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(doctor, "checks", lambda: [("GPU", gpu), ("python", doctor.python)])
    assert cli.run("doctor", []) == 1
    printed = capsys.readouterr().out
    assert "broken  GPU: ImportError: No module named 'torch'" in printed
    assert "-> fix what is broken above first" in printed


def test_doctor_runs_with_a_broken_fairseq(run_cli, tmp_path):
    """Runs as a command in this environment, except for fairseq; stdout holds nothing but JSON."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").write_text("raise ValueError('mutable default')")
    path = f"{tmp_path}:{ROOT}"
    done = run_cli(["python", "-m", "mae_lm_fairseq", "doctor", "--json"], cwd=tmp_path, env={"PYTHONPATH": path})
    findings = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1, done.stderr
    assert "mutable default" in findings["fairseq-fixed"]["details"]
    assert findings["mae_lm_fairseq"]["state"] == "broken"
    assert findings["torch"]["state"] == "works"
    assert findings["bf16"]["state"] in ("works", "absent")
