"""Verbs that are started in a directory that another process is using."""

import os
import re

import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.utils.locks import LOCK
from tests.support.processes import fork, wait_for
from tests.support.refusals import refused
from tests.utils.test_locks import hold

FILES = "--train train.txt --{} valid.txt"
FINETUNING = f"mae_lm_tiny {FILES.format('dev')} --data-bin data-bin --out out"
PREPARE = f"{FILES.format('valid')} --vocab-size 50 --destdir out"
PLAN = """
[data]
data_bin = "{}"
[train]
updates = 1
[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
"""
COMMANDS = {
    "finetune glue": "RTE mae_lm_tiny --glue-dir GLUE --data-bin data-bin --out out",
    "finetune squad": FINETUNING,
    "finetune classification": f"{FINETUNING} --text text --label label",
    "finetune tagging": f"{FINETUNING} --column UPOS",
    "adapt": f"model {FILES.format('valid')} --out out",
    "quickstart": "--smoke --out out",
    "study": "plan.toml --out out",
    "prepare": PREPARE,
    "prepare --shards 2": PREPARE,
}


@pytest.fixture
def directory(tmp_path, data_bin, monkeypatch):
    """Return a directory that another process has locked, in the working directory with some text."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("one two three four\n")
    (tmp_path / "plan.toml").write_text(PLAN.format(data_bin))
    (tmp_path / "out").mkdir()
    holder = fork(hold, tmp_path / "out")
    wait_for((tmp_path / "out/pid").exists)
    yield tmp_path / "out"
    holder.kill()
    holder.join()


def run(command: str) -> None:
    verb = re.match("(finetune )?\\S+", command)[0]
    words = command.removeprefix(verb).split() + COMMANDS[command].split()
    cli.run(verb, words)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_verb_ends_before_it_changes_anything(directory, command):
    with refused(r"^another process is using \S*out \(process \d+ on \S+\)"):
        run(command)
    assert sorted(os.listdir(directory)) == [LOCK, "pid"]


def test_parts_are_prepared_side_by_side(directory, monkeypatch):
    monkeypatch.setitem(COMMANDS, "prepare --part 1/1", PREPARE.replace("50", "13"))
    run("prepare --part 1/1")
    assert list(directory.glob("parts/train-*/part.json"))
