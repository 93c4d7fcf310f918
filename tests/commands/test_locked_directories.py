"""Verbs that are started in a directory that another process is using."""

import importlib
import os
import re

import pytest

from mae_lm_fairseq.cli import VERBS
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import LOCK
from tests.support.processes import fork, wait_for
from tests.utils.test_locks import hold

FILES = "--train train.txt --{} valid.txt"
FINETUNING = f"{FILES.format('dev')} --checkpoint none --tokenizer data-bin --arch mae_lm_tiny --out out"
PREPARE = f"{FILES.format('valid')} --vocab-size 50 --destdir out"
COMMANDS = {
    "finetune glue": f"RTE --glue-dir GLUE {FINETUNING.removeprefix(FILES.format('dev'))}",
    "finetune squad": FINETUNING,
    "finetune classification": f"{FINETUNING} --text text --label label",
    "finetune tagging": f"{FINETUNING} --column UPOS",
    "adapt": f"--model model {FILES.format('valid')} --out out",
    "quickstart": "--smoke --out out",
    "compare": "{data_bin} --size tiny --updates 1 --out out",
    "reproduce": "--scale smoke --out out",
    "prepare": PREPARE,
    "prepare --shards 2": PREPARE,
    "prepare --merge": PREPARE,
}


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Return a directory that another process has locked, in the working directory with some text."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("one two three four\n")
    (tmp_path / "out").mkdir()
    holder = fork(hold, tmp_path / "out")
    wait_for((tmp_path / "out" / "pid").exists)
    yield tmp_path / "out"
    holder.kill()
    holder.join()


def run(command: str, data_bin) -> None:
    verb = re.match("(finetune )?\\S+", command)[0]
    words = command.removeprefix(verb).split() + COMMANDS[command].format(data_bin=data_bin).split()
    importlib.import_module(f"mae_lm_fairseq.commands.{VERBS[verb][0]}").main(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_verb_ends_before_it_changes_anything(directory, data_bin, command):
    with pytest.raises(UserError, match=r"^another process is using \S*out \(process \d+ on \S+\); wait until"):
        run(command, data_bin)
    assert sorted(os.listdir(directory)) == [LOCK, "pid"]


def test_parts_are_prepared_side_by_side(directory, data_bin, monkeypatch):
    monkeypatch.setitem(COMMANDS, "prepare --part 1/1", PREPARE.replace("50", "13"))
    run("prepare --part 1/1", data_bin)
    assert list(directory.glob("parts/train-*/part.json"))
