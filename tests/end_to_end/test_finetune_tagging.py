"""``mae-lm finetune tagging``, killed and started again."""

import subprocess
import sys

import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.finetuning import sweep as finetuning
from tests.support import ROOT
from tests.support.finetuning import run_here
from tests.support.processes import kill_with_children, wait_for
from tests.support.tagging import sentences, write_columns, write_tokenizer

pytestmark = pytest.mark.integration


@pytest.mark.slow  # as that of GLUE
def test_a_killed_sweep_resumes_to_the_same_results(tmp_path, monkeypatch):
    train = write_columns(tmp_path / "train.conll", sentences(30))
    dev = write_columns(tmp_path / "dev.conll", sentences(8, seed=2))
    straight, broken = (
        list(map(str, ["mae_lm_tiny", "--train", train, "--dev", dev, "--column", "2",
                       "--data-bin", tmp_path / "data-bin", "--learning-rates", "1e-3", "--seeds", "1",
                       "--out", tmp_path / name, "--", "--max-update", "80", "--total-num-update", "240",
                       "--save-interval-updates", "20"]))
        for name in ("straight", "broken")
    )  # fmt: skip
    write_tokenizer(tmp_path / "data-bin")
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "run_all", run_here)
        cli.run("finetune tagging", straight)

    command = [sys.executable, "-m", "mae_lm_fairseq", "finetune", "tagging", *broken]
    runs = tmp_path / "broken" / "runs"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: [*runs.glob("*/checkpoints/checkpoint_last.pt")])
    kill_with_children(process)
    [first] = runs.iterdir()
    assert not (first / "result.json").exists()
    cli.run("finetune tagging", broken)
    assert "Loaded checkpoint" in (first / "result.log").read_text()
    for name in ("results.json", "report.md", "dev_predictions.conll", "model/config.json", "model/model.safetensors"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()
