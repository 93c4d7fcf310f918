"""Verbs whose output directory comes from somebody else, with links at the names that they write; and permissions."""

import contextlib
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.finetuning.sweep import keep_best_checkpoint
from mae_lm_fairseq.study.run_files import remove_checkpoints
from mae_lm_fairseq.training import runner
from mae_lm_fairseq.training.keys import MADE, Products
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_record
from mae_lm_fairseq.utils.locks import LOCK
from tests.support.bundles import TEXT
from tests.support.commands import run_verb
from tests.support.finetuning import train_here
from tests.support.refusals import refused
from tests.support.training import RECIPE
from tests.utils.test_writing import UMASKS, snapshot

TRAIN = [*RECIPE, "--arch mae_lm_tiny --max-update 2 --save-interval-updates 1 --disable-validation"]


@pytest.fixture
def texts(tmp_path) -> list[str]:
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\n\n".join(TEXT * 4), encoding="utf-8")
    return [word for split in ("train", "valid") for word in (f"--{split}", str(tmp_path / f"{split}.txt"))]


@pytest.fixture
def run(tmp_path, texts, text_data, checkpoints, data_bin):
    """Return ``run(verb, out)``, which runs a verb with an output directory."""
    checkpoint, text = checkpoints["mae_lm_tiny"], ["--text", texts[1]]
    prepare = [*texts, "--tokenizer", text_data / "sentencepiece.bpe.model"]
    prepare += ["--max-unk-rate 1 --workers 1"]
    model = [checkpoint, "--data-bin", text_data]
    few = ["--tokens 50 --pseudo-tokens 20"]

    def run(verb: str, out: Path) -> None:
        if verb == "train":
            train_here(data_bin, *TRAIN, "--save-dir", out)
            return
        words = {
            "prepare": [*prepare, "--destdir", out],
            "prepare --shards": [*prepare, "--shards 2 --destdir", out],
            "bundle": [*model, "--out", out / "bundle"],
            "average": [checkpoint, checkpoint, "--out", out / "average.pt"],
            "evaluate": [*model, *text, *few, "--out", out / "out.json"],
            "rank": [*model, *text, "--tokens 100 --bootstrap 2 --out", out],
        }[verb]
        run_verb(verb.partition(" ")[0], *words)

    return run


VERBS = {
    "prepare": (LOCK, ".dict.txt.partial", ".moving.json", "..moving.json.partial", "parts/.merged.partial"),
    "prepare --shards": (LOCK, ".manifest.json.partial", ".moving.json"),
    "bundle": (".bundle.partial", "bundle.tmp"),
    "average": ("average.pt", "average.pt.tmp", ".average.pt.partial"),
    "evaluate": ("out.json", ".out.json.partial"),
    "rank": ("ranks.json", "ranks.csv", "ranks.png", "gaps.png", "outside.png", "exclusivity.png", ".partial"),
    "train": ("dummy", "checkpoint_last.pt.tmp", ".checkpoint_last.pt.partial", ".checkpoint_1_1.pt.partial"),
}
"""Names at which links are planted; a lock that is a link is refused."""


@pytest.mark.integration  # trains
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_writes_through_a_link(tmp_path, run, verb):
    out, victims = tmp_path / "out", tmp_path / "victims"
    out.mkdir()
    victims.mkdir()
    (victims / "directory").mkdir()
    (victims / "directory/mine").write_text("mine")
    expected = {}
    for number, name in enumerate(VERBS[verb]):
        victim = victims / f"victim{number}"
        victim.write_text("mine")
        victim.chmod(0o600)
        target = victims / "directory" if name.endswith("partial") and number % 2 else victim
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).symlink_to(target)
    expected = {path: snapshot(path) for path in (victims, *victims.rglob("*"))}
    if LOCK in VERBS[verb]:
        with refused(rf"{LOCK} is a link"):
            run(verb, out)
        (out / LOCK).unlink()
    run(verb, out)
    assert {path: snapshot(path) for path in (victims, *victims.rglob("*"))} == expected


@pytest.mark.integration  # trains
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("umask", "directory", "file"), UMASKS[:2])
def test_permissions_follow_the_umask(tmp_path, run, verb, umask, directory, file):
    before, out = os.umask(umask), tmp_path / "out"
    try:
        out.mkdir()
        run(verb, out)
    finally:
        os.umask(before)
    wrong = {}
    for path in (out, *out.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (directory if path.is_dir() else file):
            wrong[path] = oct(mode)
    assert wrong == {}


@pytest.mark.integration  # trains
def test_an_output_directory_that_is_a_link_is_used(tmp_path, run):
    """As to scratch disks."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    for verb in ("prepare", "bundle", "average", "train"):
        run(verb, tmp_path / "out")
    assert {"dict.txt", "bundle", "average.pt", "checkpoint_last.pt"} <= {*os.listdir(tmp_path / "scratch")}


@pytest.fixture
def victim(tmp_path) -> Path:
    """Return a user's directory, with checkpoints and data."""
    for name in ("checkpoints/checkpoint_best.pt", "checkpoints/mine.pt", "data-bin/mine"):
        (tmp_path / "victim" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "victim" / name).write_text("mine")
    return tmp_path / "victim"


@pytest.mark.parametrize("kept", [None, "parts"])
def test_products_do_not_replace_what_a_link_leads_to(tmp_path, victim, kept):
    out = tmp_path / "out"
    out.mkdir()
    write_record(out / MADE, {"command": "a test"})
    (out / "data-bin").symlink_to(victim / "data-bin")
    (out / "models").symlink_to(victim)
    products = Products(out, "a test", ())
    made = products.make("data-bin", 1, Path.mkdir, kept=kept)
    assert not made.is_symlink()
    with refused("models leads to another directory"):
        products.make("models/data-bin", 1, Path.mkdir)
    assert (victim / "data-bin/mine").exists()


@pytest.mark.parametrize("link", ["run", "run/checkpoints"])
@pytest.mark.parametrize("clean_up", [keep_best_checkpoint, remove_checkpoints])
def test_cleaning_up_does_not_reach_a_users_checkpoints(tmp_path, victim, link, clean_up):
    path = tmp_path / "out/runs" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(victim if link == "run" else victim / "checkpoints")
    run = Run("a run", (), tmp_path / "out/runs/run/result.json", dict)
    folder = () if clean_up is keep_best_checkpoint else (tmp_path / "out/runs/run/checkpoints",)
    shutil.copy(_checkpoint(tmp_path), victim / "checkpoints/checkpoint_best.pt")
    with contextlib.suppress(UserError):
        clean_up(run, *folder)
    assert sorted(os.listdir(victim / "checkpoints")) == ["checkpoint_best.pt", "mine.pt"]


@pytest.mark.parametrize("link", ["run", "run/checkpoints"])
def test_a_run_does_not_train_in_a_directory_behind_a_link(tmp_path, victim, link):
    """The run would resume from a user's checkpoints, replace them, and remove the older ones."""
    path = tmp_path / "out/runs" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(victim if link == "run" else victim / "checkpoints")
    before = sorted(victim.rglob("*"))
    run = Run("a run", (), tmp_path / "out/runs/run/result.json", lambda run: {})
    with refused(f"{path.name} leads to another directory"):
        runner._Active.start(run, 1, {})
    assert sorted(victim.rglob("*")) == before


def test_runs_may_be_on_another_disk(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/runs").symlink_to(tmp_path / "scratch")
    monkeypatch.setattr(runner, "start_process", lambda *_: "started")
    run = Run("a run", (), tmp_path / "out/runs/run/result.json", dict)
    assert runner._Active.start(run, 1, {}).process == "started"
    assert (tmp_path / "scratch/run/result.log").exists()


def _checkpoint(directory: Path) -> Path:
    torch.save({"model": {}, "cfg": {}, "last_optimizer_state": {}}, directory / "checkpoint.pt")
    return directory / "checkpoint.pt"


def test_a_log_that_is_a_link_ends_the_run(tmp_path):
    (tmp_path / "victim").write_text("mine")
    run = Run("a run", (), tmp_path / "runs/key/result.json", lambda run: {})
    run.log.parent.mkdir(parents=True)
    run.log.symlink_to(tmp_path / "victim")
    with refused(r"result\.log is a link"):
        run_all([run])
    assert (tmp_path / "victim").read_text() == "mine"
