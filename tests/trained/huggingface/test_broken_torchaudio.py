"""A torchaudio that was built for another torch."""

import os

import pytest

from tests.support import ROOT


@pytest.mark.integration  # starts a process
def test_models_of_transformers_load(tmp_path, run_cli):
    (tmp_path / "torchaudio.py").write_text("raise OSError('undefined symbol')")
    program = "import mae_lm_fairseq.trained.huggingface.exporter, transformers; transformers.RobertaModel"
    done = run_cli(["python", "-c", program], env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert done.returncode == 0, done.stderr
