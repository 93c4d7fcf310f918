"""``mae-lm finetune glue``, killed and started again."""

import signal
import subprocess
import sys

import pytest

from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.utils.files import read_json
from tests.support.commands import run_verb
from tests.support.finetuning import run_here, save_pretrained
from tests.support.glue import make_rows, write_official, write_tokenizer
from tests.support.processes import wait_for


@pytest.mark.slow  # fine-tunes five times
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_sweep_resumes_to_the_same_results(tmp_path, monkeypatch, number):
    tokenizer = write_tokenizer(tmp_path / "data-bin")
    checkpoint = save_pretrained(tmp_path / "pretrained.pt", tokenizer, "mae_lm_tiny")
    copy = write_official(tmp_path / "glue", TASKS["SST-2"], make_rows(TASKS["SST-2"], 64))
    options = ["SST-2", checkpoint, "--glue-dir", copy, "--data-bin", tokenizer, "--learning-rates", "1e-3"]
    options += ["--seeds", "2", "--max-updates", "40", "--out"]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    further = ["--", "--layer-lr-decay", "0.9"]
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "run_all", run_here)
        run_verb("finetune glue", *options, straight, *further)

    command = [sys.executable, "-m", "mae_lm_fairseq", "finetune", "glue", *options, broken, *further]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: [*broken.glob("runs/lr0.001-seed1-*/checkpoints/checkpoint_last.pt")])
    process.send_signal(number)
    assert process.wait(300) == (-number if number is signal.SIGKILL else 128 + number)
    assert not [*broken.glob("runs/*/result.json")]
    subprocess.run(command, check=True, timeout=300, capture_output=True)

    # One run was in-process, the other was not: equal seeds give bit-equal results on a CPU.
    results = [read_json(out / "results.json") for out in (straight, broken)]
    assert results[0] == results[1]
    assert results[0]["options"] == further[1:]
    for name in ("SST-2.tsv", "report.md"):
        assert (straight / name).read_bytes() == (broken / name).read_bytes()
