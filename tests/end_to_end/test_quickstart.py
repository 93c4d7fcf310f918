"""Quickstart behaviour that its smoke run, a separate CI job, does not cover."""

import dataclasses
import json
import random
import signal

import pytest

from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.utils.errors import Interrupted, UserError
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.workflows import quickstart as module
from mae_lm_fairseq.workflows.options import QuickstartOptions
from mae_lm_fairseq.workflows.quickstart import quickstart
from mae_lm_fairseq.workflows.study.plan import Train
from tests.support import ROOT

FEW_UPDATES = dataclasses.replace(
    module.SMOKE,
    vocabulary=400,
    plan=dataclasses.replace(module.SMOKE.plan, train=Train(updates=4, warmup=2, checkpoints=(2, 4))),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write a text file of 400 documents with a vocabulary of 300 words."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 7))) for _ in range(300)]
    documents = [
        "\n".join(" ".join(generator.choices(words, k=14)) + "." for _ in range(generator.randint(5, 25)))
        for _ in range(400)
    ]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    """Return the directory of a quickstart of a few updates."""
    out = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMOKE", FEW_UPDATES)
        quickstart(QuickstartOptions(out=out, smoke=True, corpus=corpus))
        yield out


def test_results_of_a_corpus(finished, corpus):
    results = json.loads((finished / "results.json").read_text())
    assert set(results["runs"]) == {"mae_lm_tiny", "mae_lm_roberta_tiny"}
    for run in results["runs"].values():
        assert run["updates"] == 4
        assert run["seconds"] > 0
        assert 4 < run["valid_loss"] < 8
        assert len(run["top5"]) == 5
        assert 1 <= run["effective_rank"] <= run["width"] == 128
    assert 4 < results["unigram_entropy"] < 6
    assert results["sentence"].replace("<mask>", results["true_word"]).rstrip(".") in corpus.read_text()
    report = (finished / "report.md").read_text()
    assert "corpus.txt" in report
    assert str(finished) not in report
    assert str(ROOT) not in report
    assert (finished / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_the_two_runs_differ_only_in_the_architecture(finished):
    commands = [
        json.loads((finished / "runs" / name / "result.json").read_text())["command"] for name in module.SMOKE.titles
    ]
    differing = {pair for pair in zip(*commands, strict=True) if len(set(pair)) > 1}
    assert ("mae_lm_tiny", "mae_lm_roberta_tiny") in differing
    assert all("runs/mae_lm_tiny/checkpoints" in first for first, _ in differing - {tuple(module.SMOKE.titles)})


def test_a_second_start_reuses_everything_and_says_so(finished, corpus, capsys):
    before = json.loads((finished / "results.json").read_text())
    (finished / "results.json").unlink()
    quickstart(QuickstartOptions(out=finished, smoke=True, corpus=corpus))
    output = capsys.readouterr().out
    for part in ("text", "data-bin"):
        assert f"done before, reusing {finished / part}" in output
    assert "2 of 2 runs were done before, and are reused" in output
    assert json.loads((finished / "results.json").read_text()) == before


@pytest.mark.parametrize("changed", [{"smoke": False}, {"corpus": None}])
def test_other_options_in_the_same_directory_are_refused(finished, corpus, changed):
    with pytest.raises(UserError, match="has results of other settings"):
        quickstart(QuickstartOptions(**{"out": finished, "smoke": True, "corpus": corpus} | changed))


def test_a_changed_corpus_is_refused(finished, corpus, tmp_path):
    changed = tmp_path / corpus.name
    changed.write_text(corpus.read_text() + "more\n")
    with pytest.raises(UserError, match="has results of other settings"):
        quickstart(QuickstartOptions(out=finished, smoke=True, corpus=changed))


def test_a_preparation_that_is_interrupted_is_repeated(corpus, tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text(corpus.read_text()[len(split) :])
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_merge", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted, match="SIGTERM; the same command resumes"), signals_as_errors():
            module.prepare(tmp_path, FEW_UPDATES)
    data = module.prepare(tmp_path, FEW_UPDATES)
    gap = module.choose_sentence(tmp_path, data, corpus)
    assert gap.sentence.replace("<mask>", gap.true_word).rstrip(".") in corpus.read_text()


def test_too_little_text_is_refused(tmp_path):
    little = tmp_path / "little.txt"
    little.write_text("Only this.\n")
    with pytest.raises(UserError, match=r"little\.txt has 10 characters"):
        quickstart(QuickstartOptions(out=tmp_path / "out", smoke=True, corpus=little))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--smok"], "error: unknown option --smok"),
        (["--corpus"], "error: --corpus needs a value"),
        (["--smoke", "--corpus", "no-such-file"], "error: cannot read no-such-file"),
    ],
)
def test_option_errors_are_reported_before_installing(run_cli, arguments, message):
    result = run_cli([ROOT / "scripts" / "quickstart.sh", *arguments], env={"PYTHON": "/no/python"})
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_help_needs_no_install(run_cli):
    result = run_cli([ROOT / "scripts" / "quickstart.sh", "--help"], env={"PYTHON": "/no/python"})
    assert result.returncode == 0
    assert "--smoke" in result.stdout
    assert not result.stdout.startswith("#")
