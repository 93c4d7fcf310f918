"""Quickstart behaviour that its smoke run, a separate CI job, does not cover."""

import dataclasses
import json
import random
import re
import signal
import textwrap

import pytest

from mae_lm_fairseq import quickstart as module
from mae_lm_fairseq.quickstart import quickstart
from mae_lm_fairseq.study.options import QuickstartOptions
from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.utils.errors import Interrupted, UserError
from mae_lm_fairseq.utils.signals import signals_as_errors
from tests.support import ROOT

FEW_UPDATES = dataclasses.replace(
    module.SMOKE,
    vocabulary=400,
    plan=parse_plan(
        re.sub(r"updates = .*\n.*\n.*", "updates = 4\nwarmup = 2\ncheckpoints = [2]", module.SMOKE.plan.document.text),
        "quickstart.toml",
    ),
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
    assert [run["model"] for run in results["runs"]] == ["MAE-LM", "RoBERTa preset"]
    for run in results["runs"]:
        loss, rank = run["measures"]["loss"], run["measures"]["rank"]
        assert [*loss] == ["2", "4"]
        assert 4 < loss["4"]["loss"] < 8
        assert 4 < loss["4"]["unigram_entropy"] < 6
        assert 1 <= rank["4"]["real_clean"][-1] <= 128
        assert len(results["completions"][run["model"]]) == 5
    assert results["sentence"].replace("<mask>", results["true_word"]) in corpus.read_text()
    report = (finished / "report.md").read_text()
    assert "corpus.txt" in report
    assert "## A completed sentence" in report
    assert "| MAE-LM | `mae_lm_tiny` |" in report
    assert str(ROOT) not in report
    for name in ("loss.png", "rank.png"):
        assert f"({name})" in report
        assert (finished / name).read_bytes().startswith(b"\x89PNG")


def test_the_bundles_are_those_of_the_report(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished)
    [code] = re.findall(r"```python\n(.*?)```", (finished / "report.md").read_text(), re.DOTALL)
    exec(textwrap.dedent(code))
    assert capsys.readouterr().out.count("Filling(") == 3
    assert [path.name for path in sorted((finished / "models").iterdir())] == ["MAE-LM", "RoBERTa-preset"]


def test_a_second_start_reuses_everything_and_says_so(finished, corpus, capsys):
    before = json.loads((finished / "results.json").read_text())
    (finished / "results.json").unlink()
    quickstart(QuickstartOptions(out=finished, smoke=True, corpus=corpus))
    output = capsys.readouterr().out
    for part in ("text", "data-bin", "models/MAE-LM"):
        assert f"done before, reusing {finished / part}" in output
    assert json.loads((finished / "results.json").read_text()) == before


def test_a_preparation_that_was_interrupted_is_repeated(corpus, tmp_path, monkeypatch):
    products = module.Products(tmp_path, module.OWNED)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_merge", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted, match="SIGTERM; the same command resumes"), signals_as_errors():
            module.make_data(products, FEW_UPDATES, corpus)
    assert (module.make_data(products, FEW_UPDATES, corpus).data_bin / "train.bin").exists()


SENTENCES = ["Returns the values of the array.", "1 2 3", "These are many other values of another array."]


def test_a_gap_is_a_common_word_inside_a_sentence():
    gap = module.find_gap("\n".join(SENTENCES))
    assert gap.true_word in ("values", "other", "many", "another")
    assert gap.sentence.replace("<mask>", gap.true_word) in SENTENCES
    assert not gap.sentence.startswith("<mask>")


def test_a_gap_without_words_is_in_the_middle():
    assert module.find_gap("1 2\n一二三四五六七\n") == module.Gap("一二三<mask>五六七", "四")


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
