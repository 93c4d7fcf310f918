"""scripts/finetune_glue.py, killed and started again."""

import json
import signal
import subprocess
import sys
import time

import pytest

from mae_lm_fairseq.evaluation.glue import TASKS

from ..conftest import ROOT
from ..finetuning import save_pretrained
from ..glue import make_rows, write_official, write_tokenizer

EXTRA = ["--", "--layer-lr-decay", "0.9"]


@pytest.fixture
def command(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "data-bin")
    checkpoint = save_pretrained(tmp_path / "pretrained.pt", tokenizer, "mae_lm_tiny")
    glue = write_official(tmp_path / "glue", TASKS["SST-2"], make_rows(TASKS["SST-2"], 64))
    options = ["--glue-dir", glue, "--checkpoint", checkpoint, "--tokenizer", tokenizer, "--learning-rates", "1e-3"]
    options += ["--seeds", "2", "--max-updates", "40"]
    return [sys.executable, ROOT / "scripts" / "finetune_glue.py", "SST-2", *options, "--out"]


def test_a_killed_sweep_goes_on_and_gives_the_same_table(command, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    subprocess.run([*command, straight, *EXTRA], check=True, timeout=300, capture_output=True)
    first = broken / "runs" / "lr0.001-seed1"
    process = subprocess.Popen([*command, broken, *EXTRA], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (first / "checkpoints" / "checkpoint_last.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline  # noqa: PT018
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (first / "result.json").exists()
    subprocess.run([*command, broken, *EXTRA], check=True, timeout=300, capture_output=True)
    results = [json.loads((out / "results.json").read_text()) for out in (straight, broken)]
    assert results[0] == results[1]
    assert results[0]["options"] == EXTRA[1:]
    assert (straight / "SST-2.tsv").read_bytes() == (broken / "SST-2.tsv").read_bytes()
    times = [path.stat().st_mtime_ns for path in sorted(broken.glob("runs/*/result.json"))]
    again = subprocess.run([*command, broken, *EXTRA], check=True, timeout=300, capture_output=True, text=True)
    assert again.stdout.count("done before") == 3
    assert times == [path.stat().st_mtime_ns for path in sorted(broken.glob("runs/*/result.json"))]
