"""Findings of the doctor on environments with known faults."""

import json
import shutil
import sys
from importlib import metadata

import pytest
import torch

import mae_lm_fairseq
from mae_lm_fairseq.commands import doctor
from mae_lm_fairseq.utils import gpus
from mae_lm_fairseq.utils.files import write_record
from tests.support import ROOT
from tests.support.commands import run_verb
from tests.support.refusals import refused


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


@pytest.mark.parametrize(
    ("version", "wanted", "state"),
    [
        ("2.5.1+cu121", ">=2.6", "broken"),
        ("2.10.0", ">=2.6", "works"),
        ("2.6.0", ">=1.24,<2.6", "broken"),
        ("0.1", "", "works"),
    ],
)
def test_versions(monkeypatch, version, wanted, state):
    pretend(monkeypatch, "numpy", version)
    finding = doctor.package("numpy", wanted, None)
    assert finding.state == state
    assert finding.remedy == (f"pip install 'numpy{wanted}'" if state == "broken" else "")


def test_the_requirements_of_the_metadata_are_checked():
    assert {subject for subject, _ in doctor.checks()} >= {"torch", "fairseq-fixed", "transformers", "triton"}


def test_missing_packages(monkeypatch):
    hide(monkeypatch, "fairseq-fixed", "transformers")
    assert doctor.package("fairseq-fixed", ">=0.12.3.1", None).state == "broken"
    finding = doctor.package("transformers", ">=4.57", "hf")
    assert (finding.state, finding.details) == ("absent", "not installed; in the extra hf")


def test_fairseq_compiled_for_another_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq.data.data_utils_fast", None)
    assert doctor.package("fairseq-fixed", "", None).state == "broken"


def test_a_part_that_does_not_import(monkeypatch):
    """For example with a version of torch that lacks something."""
    monkeypatch.setattr(doctor, "checks", lambda: [("mae_lm_fairseq", doctor.this_package)])
    monkeypatch.setattr(mae_lm_fairseq, "_registered", False)
    monkeypatch.setitem(sys.modules, "mae_lm_fairseq.models.mae_lm", None)
    [finding] = doctor.run_checks()
    assert (finding.state, "models.mae_lm" in finding.details) == ("broken", True)


def test_gpus_that_cuda_cannot_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpus, "unusable_gpu", lambda: "too old; update the driver")
    assert doctor.gpu() == doctor.Finding("GPU", "broken", "too old; update the driver")
    monkeypatch.setattr(gpus, "unusable_gpu", lambda: None)
    assert doctor.gpu().state == "absent"


def test_a_failing_examination_is_a_finding(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "checks", lambda: [("GPU", lambda: 1 / 0)])
    assert run_verb("doctor") == 1
    assert "broken  GPU: ZeroDivisionError: division by zero" in capsys.readouterr().out


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


def test_files_are_compared_with_their_hashes(bundles, tmp_path, capsys):
    shutil.copytree(bundles["mae_lm_tiny"], tmp_path / "a/bundle")
    write_record(tmp_path / "results.json", {"accuracy": 0.5})
    assert run_verb("doctor", tmp_path) == 0
    assert "2 files or lists of files are as they were written" in capsys.readouterr().out
    text = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(text.replace("0.5", "0.6"))
    (tmp_path / "a/bundle/dict.txt").write_text("other")
    assert run_verb("doctor", tmp_path) == 1
    output = capsys.readouterr().out
    for name in ("results.json is damaged", "dict.txt is damaged"):
        assert name in output


def test_a_directory_without_hashes_is_refused(tmp_path):
    with refused(str(tmp_path)):
        run_verb("doctor", tmp_path)
