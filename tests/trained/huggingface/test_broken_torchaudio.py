"""A torchaudio that was built for another torch."""

import os
import sys

import pytest

from tests.support import ROOT


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(source)`` installs a torchaudio of one file, and returns its directory."""

    def make(source):
        (tmp_path / "torchaudio.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(sys.modules, "torchaudio", None)  # so that it is restored after the test
        del sys.modules["torchaudio"]
        return tmp_path

    return make


@pytest.mark.integration  # starts a process
def test_models_of_transformers_load(install, run_cli):
    directory = install("raise OSError('undefined symbol')")
    program = "import mae_lm_fairseq.trained.huggingface.exporter, transformers; transformers.RobertaModel"
    done = run_cli(["python", "-c", program], env={"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])})
    assert done.returncode == 0, done.stderr
