"""The example of docs/own-ideas.md: studies with a decoder, a mask function and a measure of a user's directory."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mae_lm_fairseq.cli import main
from mae_lm_fairseq.core import decoder
from mae_lm_fairseq.text.preparation import PreparationOptions, prepare
from tests.support import ROOT, networks
from tests.support.documentation import blocks
from tests.support.processes import fork, mae_lm, runs_in_children, wait_for
from tests.support.tagging import write_texts

PAGE = ROOT / "docs" / "own-ideas.md"
STUDY, CODE, _, _, VERBS, PYTHON = blocks(PAGE)
[PLAN] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SMALL = """
batch-size = 4
update-freq = 1
num-workers = 0
encoder-layers = 2
encoder-embed-dim = 16
encoder-ffn-embed-dim = 32
decoder-layers = 1
lr = 1e-2
log-interval = 1
"""
REPLACEMENTS = {
    "updates = 2000\nwarmup = 500": "updates = 4\nwarmup = 1",
    "tokens-per-sample = 128\n": f"tokens-per-sample = 32\n{SMALL}",
    'kind = "loss"': 'kind = "loss"\ntokens = 500',
    'kind = "anisotropy"': 'kind = "anisotropy"\ntokens = 500',
}
"""Replacements that make the plan of the page small."""
OWN_TASK = """
from pathlib import Path

from fairseq.criterions import register_criterion
from fairseq.tasks import register_task

from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMTask
from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig


@register_task("own_task", dataclass=MaskedAutoencoderLMConfig)
class OwnTask(MaskedAutoencoderLMTask):
    def begin_epoch(self, epoch, model):
        Path("own-task").touch()
        super().begin_epoch(epoch, model)


@register_criterion("own_loss")
class OwnLoss(MaskedAutoencoderLMCriterion):
    def forward(self, model, sample, reduce=True):
        Path("own-loss").touch()
        return super().forward(model, sample, reduce)
"""
OF_FAIRSEQ = """
from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmLoss


@register_criterion("of_fairseq")
class OfFairseq(MaskedLmLoss):
    pass
"""
ADAPT = ["--train", "train.txt", "--valid", "valid.txt", "--out", "adapted", "--updates", "3"]
MASKS = 'mask-function = "rare_first"'

pytestmark = pytest.mark.integration


def small_plan() -> str:
    plan = PLAN
    for old, new in REPLACEMENTS.items():
        assert old in plan
        plan = plan.replace(old, new)
    return plan


def of_one_model(plan: str, name: str) -> str:
    """Return a plan with one of its models, and no contrast."""
    beginning, *models = plan.split("[[model]]")
    *_, measures = models[-1].partition("[[measure]]")
    [model] = [model.partition("[[measure]]")[0] for model in models if f'name = "{name}"' in model]
    return f"{beginning}[[model]]{model}[[measure]]{measures.partition('[[contrast]]')[0]}"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Create what the page assumes, and run its block that writes the directory."""
    directory = tmp_path_factory.mktemp("own-ideas")
    write_texts(directory)
    texts = [(str(directory / f"{name}.txt"),) for name in ("train", "valid")]
    rates = {"character_coverage": 1.0, "max_unk_rate": 1.0}
    prepare(PreparationOptions(*texts, directory / "data-bin", vocab_size=90, **rates, workers=1))
    subprocess.run(["/bin/bash", "-euc", CODE.text], cwd=directory, check=True)
    (directory / "ideas" / "tasks").mkdir()
    (directory / "ideas" / "tasks" / "own.py").write_text(OWN_TASK)
    with pytest.MonkeyPatch.context() as patch, runs_in_children():
        patch.chdir(directory)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield directory


def _main(words: list[str]) -> None:
    torch.set_num_threads(1)  # those of OpenMP do not work in a fork of a process that has used them
    sys.argv = words
    sys.exit(main())


def start(command: str):
    """Start a command in a forked process: what it imports stays there, and its runs are started quickly."""
    return fork(_main, shlex.split(command))


def run(command: str) -> None:
    process = start(command)
    process.join()
    assert process.exitcode == 0, command


def results(out: str) -> dict:
    return json.loads(Path(out, "results.json").read_bytes())


@pytest.fixture(scope="module")
def compared(here):
    """Return the results of the plan of the page with one seed, and a task and a loss of the directory."""
    plan = (
        small_plan()
        .replace("seeds = 3", "seeds = 1")
        .replace(MASKS, f'{MASKS}, task = "own_task", criterion = "own_loss"')
    )
    plan = plan.partition("[[contrast]]")[0]
    (here / "plan.toml").write_text(plan)
    *_, command = STUDY.commands()
    run(f"{command} --jobs 2")  # so that each has one thread
    return results("compared")


@pytest.mark.slow  # the other tests check the same plan with one seed
def test_the_plan_of_the_page_is_valid(here):
    """With all its seeds and the contrast."""
    (here / "whole.toml").write_text(small_plan())
    command, _ = STUDY.commands()
    done = mae_lm(*shlex.split(command.replace("plan.toml", "whole.toml"))[1:], cwd=here)
    assert done.returncode == 0, done.stderr
    assert "9 trainings" in done.stdout


def test_every_idea_is_trained_and_measured(compared):
    runs = {run["model"]: run for run in compared["runs"]}
    losses = {name: run["measures"]["loss"]["4"]["loss"] for name, run in runs.items()}
    assert len({round(loss, 5) for loss in losses.values()}) == 3  # of the same tokens
    for run in runs.values():
        assert all(-1 <= cosine <= 1 for cosine in run["measures"]["anisotropy"]["4"]["cosine"])
        assert all(" --user-dir ideas " in command for command in run["commands"])
    report = Path("compared/report.md").read_text()
    assert "Anisotropy: the mean cosine" in report


def test_the_loss_and_the_task_of_the_directory_train(compared, here):
    assert (here / "own-task").exists()
    assert (here / "own-loss").exists()


def test_other_verbs_open_its_checkpoints(compared, here):
    """The commands of the page after the pretraining, and without the option what needs no decoder."""
    [checkpoint] = Path("compared/runs").glob("from-the-mean-*/models/4.pt")
    _, bundle, measure, _ = [shlex.split(command)[1:] for command in VERBS.commands()]
    bundle[1] = str(checkpoint.resolve())
    for command in (bundle, measure):
        done = mae_lm(*command, cwd=here)
        assert done.returncode == 0, done.stderr
    for command in (bundle, ["export", "mean"]):
        done = mae_lm(*without_code(command), "--out", f"without-{command[0]}", cwd=here)
        assert done.returncode == 0, done.stderr
    weights = "model.safetensors"
    assert (here / "without-bundle" / weights).read_bytes() == (here / "mean" / weights).read_bytes()
    for command in (["evaluate", "mean", "--text", "valid.txt"], ["adapt", "mean", *ADAPT], measure):
        done = mae_lm(*without_code(command), cwd=here)
        assert done.returncode
        assert "--user-dir" in done.stderr
        assert command is measure or "from_the_mean is not one of self, cross, self_cross" in done.stderr
    assert not list(Path("adapted").glob("runs/*/*.log"))
    values = json.loads((here / "similar" / "results.json").read_text())["models"]["mean"]["cosine"]
    [of_study] = [run for run in compared["runs"] if run["model"] == "from the mean"]
    # The study measures at the length of the training, 32, and the verb at the one of the model.
    assert len(values) == len(of_study["measures"]["anisotropy"]["4"]["cosine"])
    opened = fork(_open_in_python)
    opened.join()
    assert opened.exitcode == 0


def without_code(command: list[str]) -> list[str]:
    return [word for word in command if word not in ("--user-dir", "ideas")]


def _open_in_python() -> None:
    """Run the block of Python of the page."""
    sys.path.insert(0, os.getcwd())
    names = {}
    exec(PYTHON.text, names)
    assert type(names["model"].model.autoencoder.decoder).__name__ == "FromTheMean"


def test_pretraining_knows_the_package_whatever_the_directory_imports(here):
    """A directory beside it hides no module of Python."""
    for name, text in {"pure": OF_FAIRSEQ, "json": "raise ImportError"}.items():
        (here / name).mkdir()
        (here / name / "__init__.py").write_text(text)
    sizes = SMALL.replace(" = ", " ").split("\n")
    options = [word for line in sizes if line for word in f"--{line}".split()]
    pretrain, *_ = VERBS.commands()
    words = pretrain.replace("ideas", "pure").replace("--decoder-attention from_the_mean", "--criterion of_fairseq")
    done = mae_lm(*shlex.split(words)[1:], "--cpu", "--max-update", "2", *options, cwd=here)
    shutil.rmtree(here / "json")
    assert done.returncode == 0, done.stderr
    assert "criterion: OfFairseq" in done.stderr + done.stdout
    assert (here / "checkpoints" / "mean" / "checkpoint_last.pt").exists()


def test_the_decoder_of_the_page_adds_the_mean_of_its_sequence(here, monkeypatch):
    """Predictions differ from MAE-LM's, and do not depend on the other sequences of a batch."""
    names = {"__name__": "mine"}
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "register_decoder", lambda *_: None)
        exec(Path("ideas/decoders.py").read_text(), names)
    usual = networks.network()
    changed = networks.network()
    changed.decoder.__class__ = names["FromTheMean"]  # with the same weights

    def logits(network, *rows):
        tokens, targets = networks.masked(networks.batch(*rows), [(row, 2) for row in range(len(rows))])
        return network.eval()(tokens, networks.layout_for(tokens, targets))

    short, long = networks.text(5, seed=1), networks.text(9, seed=2)
    together = logits(changed, short, long)
    torch.testing.assert_close(together, torch.cat([logits(changed, short), logits(changed, long)]))
    assert (together - logits(usual, short, long)).abs().max() > 0.01


@pytest.mark.slow  # 9 trainings, 30 s
def test_a_killed_study_resumes_and_changed_code_makes_new_runs(here):
    (here / "seeds.toml").write_text(of_one_model(small_plan(), "from the mean"))
    shutil.copytree("ideas", "again/ideas")
    command = "mae-lm study seeds.toml --user-dir again/ideas --out seeds --jobs 2"
    killed = start(command)
    wait_for(lambda: [*Path("seeds/runs").glob("*-seed2-*/checkpoints/checkpoint_last.pt")])
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert not Path("seeds/results.json").exists() or len(results("seeds")["runs"]) < 3

    run(command)
    first = results("seeds")
    assert [run["seed"] for run in first["runs"]] == [1, 2, 3]
    before = sorted(Path("seeds/runs").iterdir())
    times = [path.stat().st_mtime_ns for path in sorted(Path("seeds/runs").rglob("*.json"))]
    run(command)
    assert [path.stat().st_mtime_ns for path in sorted(Path("seeds/runs").rglob("*.json"))] == times

    code = Path("again/ideas/decoders.py")
    original = code.read_text()
    code.write_text(original.replace("joined + means", "joined - means"))
    run(command)
    changed = results("seeds")
    assert {run["directory"] for run in changed["runs"]}.isdisjoint(run["directory"] for run in first["runs"])
    assert set(before) < set(Path("seeds/runs").iterdir())
    for old, new in zip(first["runs"], changed["runs"], strict=True):
        assert not np.isclose(old["measures"]["loss"]["4"]["loss"], new["measures"]["loss"]["4"]["loss"], rtol=1e-6)
    assert changed["plan"] == first["plan"]
    [change] = changed["changes"]
    changed = [line.partition(":")[0] for line in change["lines"] if not line.startswith(" ")]
    places = ("again/ideas", "again/ideas/decoders.py")
    assert sorted(changed) == sorted(f"{sign}sha256 of --user-dir {place}" for place in places for sign in "-+")
    assert "+sha256 of --user-dir again/ideas/decoders.py: " in Path("seeds/report.md").read_text()

    code.write_text(original)
    run(command)
    assert results("seeds")["runs"] == first["runs"]
