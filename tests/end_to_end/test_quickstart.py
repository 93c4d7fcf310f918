"""Quickstart behaviour that its smoke run, a separate CI job, does not cover."""

import contextlib
import dataclasses
import io
import os
import random
import re
import signal
import textwrap
from types import SimpleNamespace

import pytest

from mae_lm_fairseq.study import quickstart as module
from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.study.quickstart import Options, main
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.utils.errors import Interrupted
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.signals import signals_as_errors
from tests.support import ROOT
from tests.support.processes import fork, runs_in_children, wait_for

FEW_UPDATES = dataclasses.replace(
    module.SMOKE,
    vocabulary=400,
    plan=parse_plan(
        re.sub(r"updates = .*\n.*\n.*", "updates = 4\nwarmup = 2", module.SMOKE.plan.document.text),
        "quickstart.toml",
    ),
)


@pytest.fixture(scope="module", autouse=True)
def few_imports():
    with runs_in_children():
        yield


def few_words(packages):
    """Yield 400 documents with a vocabulary of 300 words, every fiftieth for validation."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=generator.randint(2, 7))) for _ in range(300)]
    for number in range(400):
        lines = [" ".join(generator.choices(words, k=14)) + "." for _ in range(generator.randint(5, 25))]
        yield lines, number % 50 == 0


@pytest.fixture(scope="module", autouse=True)
def text():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "docstring_documents", few_words)
        yield


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the directory of a quickstart of a few updates that was killed, and what its second start printed."""
    out, printed = tmp_path_factory.mktemp("quickstart"), io.StringIO()
    options = Options(out=out, smoke=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMOKE", FEW_UPDATES)
        first = fork(main, options)
        wait_for(lambda: [*out.glob("runs/*/training-4.json")])
        os.kill(first.pid, signal.SIGKILL)
        first.join()
        assert not (out / "models").exists()
        _, *others = out.glob("runs/*/training-4.json")
        for result in others:  # the two trainings may end at the same time
            result.unlink()
        with contextlib.redirect_stdout(printed):
            main(options)
        yield out, printed.getvalue()


@pytest.fixture(scope="module")
def finished(killed):
    return killed[0]


def test_a_killed_quickstart_goes_on(killed):
    out, printed = killed
    assert f"done before, reusing {out / 'data-bin'}" in printed
    assert re.search("[12] of 4 runs were done before, and are reused", printed)  # two trainings, measured after


def test_a_training_of_few_updates_has_a_caution():
    cautions = [module.caution(SimpleNamespace(train=SimpleNamespace(updates=updates))) for updates in (60, 1000)]
    assert cautions[0].startswith("60 updates teach nothing")
    assert not cautions[1]


def test_results(finished):
    results = read_json(finished / "results.json")
    assert [run["model"] for run in results["runs"]] == ["MAE-LM", "RoBERTa preset"]
    for run in results["runs"]:
        loss, rank = run["measures"]["loss"], run["measures"]["rank"]
        assert [*loss] == ["4"]
        assert 4 < loss["4"]["loss"] < 8
        assert 4 < loss["4"]["unigram_entropy"] < 6
        assert 1 <= rank["4"]["real_clean"][-1] <= 128
    report = (finished / "report.md").read_text()
    assert "| MAE-LM | `mae_lm_tiny` |" in report
    assert str(ROOT) not in report
    assert "(rank.png)" in report
    assert (finished / "rank.png").read_bytes().startswith(b"\x89PNG")


def test_the_bundles_are_those_of_the_report(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished)
    [code] = re.findall(r"```python\n(.*?)```", (finished / "report.md").read_text(), re.DOTALL)
    exec(textwrap.dedent(code))
    assert capsys.readouterr().out.count("Filling(") == 3
    assert [path.name for path in sorted((finished / "models").iterdir())] == ["MAE-LM", "RoBERTa-preset"]


def test_a_second_start_reuses_everything_and_says_so(finished, capsys):
    before = read_json(finished / "results.json")
    (finished / "results.json").unlink()
    main(Options(out=finished, smoke=True))
    output = capsys.readouterr().out
    for part in ("text", "data-bin", "models/MAE-LM"):
        assert f"done before, reusing {finished / part}" in output
    assert read_json(finished / "results.json") == before


def test_a_preparation_that_was_interrupted_resumes(tmp_path, monkeypatch, capsys):
    products = module.Products(tmp_path, "mae-lm quickstart", module.OWNED)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_merge", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted, match="SIGTERM; the same command resumes"), signals_as_errors():
            module.make_data(products, FEW_UPDATES)
    assert (module.make_data(products, FEW_UPDATES).data_bin / "train.bin").exists()
    assert "1 of 1 parts are from an earlier run" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "code", "stream"), [("--smok", 1, "stderr"), ("--help", 0, "stdout")])
def test_wrong_options_and_help_need_no_install(run_cli, option, code, stream):
    done = run_cli([ROOT / "scripts/quickstart.sh", option], env={"PYTHON": "/no/python"})
    assert done.returncode == code
    assert "--smok" in getattr(done, stream)
