"""``mae-lm finetune squad``, from a question file to the reported metrics."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.squad.metrics import evaluate_1_1, gold_answers
from mae_lm_fairseq.finetuning.squad.questions import read_squad
from mae_lm_fairseq.finetuning.squad.run import finetune
from tests.support.answering import write_squad, write_tokenizer
from tests.support.processes import kill_with_children, wait_for

# Large enough to memorise sixteen answers in a few seconds.
LEARN_BY_HEART = ["--encoder-layers", "2", "--dropout", "0", "--attention-dropout", "0"]
LEARN_BY_HEART += ["--max-update", "100", "--total-num-update", "300", "--save-interval-updates", "50"]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Write the tokenizer and the questions."""
    directory = tmp_path_factory.mktemp("squad")
    return {"data_bin": write_tokenizer(directory / "data-bin"), "train": write_squad(directory / "squad.json")}


def options(given, out):
    return {
        "train": given["train"],
        "dev": given["train"],
        "data_bin": given["data_bin"],
        "out": out,
        "seeds": 1,
        "learning_rates": [1e-3],
        "tokens_per_sample": 64,
    }


def start_command(given, out) -> subprocess.Popen:
    words = [sys.executable, "-m", "mae_lm_fairseq", "finetune", "squad", "mae_lm_tiny"]
    for name, value in options(given, out).items():
        words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    return subprocess.Popen(
        [str(word) for word in [*words, "--", *LEARN_BY_HEART]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def through(given, tmp_path_factory):
    """Return the directory of a run without interruption, and its results."""
    out = tmp_path_factory.mktemp("through")
    return out, finetune(SquadOptions(model=Path("mae_lm_tiny"), extra=LEARN_BY_HEART, **options(given, out)))


def test_answers_are_memorised(given, through):
    out, results = through
    assert results["metrics"]["exact_match"]["values"] == [100.0]
    assert json.loads((out / "results.json").read_text()) == results
    assert "| 0.001 | exact_match | 100.0 (one seed) | 100.0 |" in (out / "report.md").read_text()
    answers = json.loads((out / "predictions.json").read_text())
    assert evaluate_1_1(gold_answers(read_squad(given["train"], version_2=False)), answers) == {
        "exact_match": 100.0,
        "f1": 100.0,
    }


@pytest.mark.slow  # GLUE's sweep, which the same runner resumes, is killed in the gate
def test_sigkill_changes_nothing(given, through, tmp_path):
    (unbroken, results), out = through, tmp_path / "killed"
    killed = start_command(given, out)
    wait_for(lambda: [*out.glob("runs/*/checkpoints/checkpoint_last.pt")] or killed.poll() is not None)
    assert killed.poll() is None
    kill_with_children(killed)
    assert not (out / "results.json").exists()
    again = finetune(SquadOptions(model=Path("mae_lm_tiny"), extra=LEARN_BY_HEART, **options(given, out)))
    assert again == results
    assert "Loaded checkpoint" in next(out.glob("runs/*/result.log")).read_text()
    for name in ("predictions.json", "na_prob.json", "report.md"):
        assert (out / name).read_bytes() == (unbroken / name).read_bytes()
