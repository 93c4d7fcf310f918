"""fairseq trains; what has been trained is used without it."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "hydra"):
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, Blocked())

import mae_lm_fairseq
from mae_lm_fairseq.cli import run

pretrained, finetuned, text = sys.argv[1:]
assert mae_lm_fairseq.load(pretrained).fill_mask("a <mask>.")[0].probability > 0
assert "torch._dynamo" not in sys.modules  # importing it takes as long as importing torch
run("rank", [pretrained, "--text", text, "--tokens", "200", "--out", "ranks"])
run("evaluate", [pretrained, "--text", text, "--tokens", "200", "--pseudo-tokens", "50"])
run("export", [pretrained, "--out", "exported"])
run("predict", [finetuned, "--input", text, "--out", "labels.tsv"])
"""


@pytest.mark.integration  # starts a command
def test_trained_models_are_used_without_fairseq(bundles, text_data, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the tokenizer is read from a file .\n" * 200)
    arguments = [bundles["mae_lm_tiny"], bundles["tags"], text]
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported/model.safetensors").exists()
    assert (tmp_path / "labels.tsv").read_text().startswith("the\t")
