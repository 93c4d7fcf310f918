"""What the README tells people to type works."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from .conftest import ROOT
from .training import parse

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)

TRAININGS = [shlex.split(block.replace("\\\n", " ")) for block in BLOCKS if block.startswith("fairseq-train")]
# They take minutes. Continuous integration runs them.
ELSEWHERE = ["scripts/quickstart.sh\n", "scripts/test.sh\n"]
SHORT = [block for block in BLOCKS if not block.startswith("fairseq-train") and block not in ELSEWHERE]


def test_blocks_are_found():
    assert len(TRAININGS) >= 2
    assert len(SHORT) >= 2
    assert set(ELSEWHERE) < set(BLOCKS)


@pytest.mark.parametrize("command", TRAININGS, ids=lambda command: command[command.index("--arch") + 1])
def test_trainings_are_understood(command):
    cfg = parse(*command[1:])
    assert cfg.task.data == command[1]
    assert cfg.model._name == command[command.index("--arch") + 1]


def test_mae_lm_and_roberta_differ_in_the_architecture_alone():
    mae_lm, roberta = TRAININGS[:2]
    assert len(mae_lm) == len(roberta)
    different = {option for option, a, b in zip(mae_lm, mae_lm[1:], roberta[1:], strict=False) if a != b}
    assert different == {"--arch", "--save-dir", "--tensorboard-logdir"}


@pytest.mark.parametrize("block", SHORT, ids=lambda block: block.split()[1])
def test_short_blocks_run(block, run_cli, tmp_path):
    for name in ("preprocess", "mae_lm_fairseq"):
        (tmp_path / name).symlink_to(ROOT / name)
    words = re.findall(r"[a-z]+", README.lower())
    lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("\n".join(lines[:9]) + "\n", encoding="utf-8")
    script = tmp_path / "block.sh"
    script.write_text("set -euo pipefail\n" + block.replace("16000", "300"))  # for want of text
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_cli(["/bin/bash", script], cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (tmp_path / "data-bin").iterdir()} >= {"train.bin", "train.idx", "valid.bin"}


def test_map_names_what_exists():
    block = re.search(r"^## Map\n\n```\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)[1]
    for path in re.findall(r"^(?:  )?(\w+(?:/|\.py))", block, flags=re.MULTILINE):
        assert any((ROOT / parent / path).exists() for parent in ("", "mae_lm_fairseq")), path
    for path in re.findall(r"(\w+\.py)", block):
        assert list((ROOT / "mae_lm_fairseq").rglob(path)), path
