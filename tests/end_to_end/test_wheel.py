"""The built wheel, installed away from the checkout."""

import os
import random
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from tests.support import ROOT
from tests.support.glue import make_rows, sentence, write_official
from tests.support.processes import run_command


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment that has the wheel and nothing else."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    # Built from a copy, because setuptools writes into the source tree.
    shutil.copytree(ROOT / "mae_lm_fairseq", source / "mae_lm_fairseq", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", directory, source)
    [wheel] = directory.glob("*.whl")
    venv.create(directory / "environment", symlinks=True)
    pip("--python", directory / "environment/bin/python", "install", wheel)
    return directory / "environment"


def pip(*arguments: object) -> None:
    """Run pip without network and dependencies."""
    settings = {"PYTHONPATH": "", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = run_command([sys.executable, "-m", "pip", *arguments], cwd=ROOT.parent, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def mae_lm(environment, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """``mae_lm("prepare", ...)`` runs the installed command in ``tmp_path``.

    It finds its dependencies in the directories of this environment, named in PYTHONPATH. Python reads no .pth files in
    those, so the editable installation of the checkout has no effect.
    """
    packages = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    settings = {"PYTHONPATH": os.pathsep.join(packages), "PATH": f"{environment}/bin:{os.environ['PATH']}"}

    def run(*arguments: object) -> subprocess.CompletedProcess:
        done = run_command([environment / "bin/mae-lm", *arguments], cwd=tmp_path, env=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    located = run_command([environment / "bin/python", "-m", "mae_lm_fairseq"], cwd=tmp_path, env=settings)
    assert Path(located.stdout.strip()).is_relative_to(environment), located.stdout + located.stderr
    return run


def test_the_wheel_has_all_files_and_a_command(mae_lm, environment):
    [installed] = environment.glob("lib/python*/site-packages/mae_lm_fairseq")
    files = (path.relative_to(ROOT / "mae_lm_fairseq") for path in (ROOT / "mae_lm_fairseq").rglob("*.*"))
    assert not [path for path in files if path.suffix != ".pyc" and not (installed / path).exists()]
    assert "reproduction-base" in mae_lm("study", "list").stdout


@pytest.mark.slow
def test_from_text_to_an_exported_model(mae_lm, tmp_path):
    generator = random.Random(0)
    for split, lines in (("train", 400), ("valid", 40)):
        text = "\n".join(sentence(generator, 12) for _ in range(lines))
        (tmp_path / f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    write_official(tmp_path / "GLUE", TASKS["SST-2"], make_rows(TASKS["SST-2"]))

    mae_lm("prepare", "--train train.txt --valid valid.txt --vocab-size 60 --destdir data-bin")
    few = ["--max-update 2 --batch-size 16 --num-workers 0 --disable-validation"]
    mae_lm("pretrain", "mae_lm_tiny", "data-bin", "pretrained", "--cpu", *few)
    model = ["pretrained/checkpoint_last.pt", "--data-bin data-bin"]
    sweep = ["--seeds 1 --learning-rates 1e-3 --max-updates 2"]
    done = mae_lm("finetune", "glue", "SST-2", *model, "--glue-dir GLUE", *sweep, "--out sst-2")
    assert "accuracy: median" in done.stdout
    mae_lm("predict", "sst-2/model", "--input GLUE/SST-2/dev.tsv --out predicted.tsv")
    assert (tmp_path / "predicted.tsv").read_text().startswith("sentence\tlabel\tprediction\tprobability_0\t")
    done = mae_lm("export", "pretrained/checkpoint_last.pt", "--data-bin data-bin --out exported")
    assert "compared with the original" in done.stdout


@pytest.mark.slow
def test_quickstart(mae_lm, tmp_path):
    mae_lm("quickstart", "--smoke --out quickstart")
    assert (tmp_path / "quickstart/report.md").exists()
