"""scripts/benchmark.py at a size that only shows that it works."""

import json
import runpy
import shlex
import sys
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch

from benchmark import measurement, report
from benchmark.batches import PAD, Case, draw_batch
from benchmark.data import measure_pipeline
from benchmark.figure import draw
from benchmark.measurement import Results, Row, measure
from benchmark.operators import REST, by_kind
from benchmark.settings import SETTINGS, Setting, Subject, subjects
from benchmark.workers.training import Training
from tests.support import ROOT

TINY = Setting(2, 2, 32, 2, 100, 16, 4, "cpu", ("fp32",), steps=2, together=40, matrix=64, extras=False, compiled=())


def run_script(monkeypatch, *arguments, setting="cpu-small"):
    """Run scripts/benchmark.py in this process, with a tiny setting in place of ``cpu-small``."""
    monkeypatch.setitem(SETTINGS, "cpu-small", TINY)
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--setting", setting, *map(str, arguments)])
    runpy.run_path(str(ROOT / "scripts" / "benchmark.py"), run_name="__main__")


def test_a_copy_that_the_setting_does_not_measure_is_refused(monkeypatch, tmp_path):
    words = ["--authors-repo", tmp_path, "--json", tmp_path / "figures.json"]
    message = "^error: --authors-repo: --setting cpu-large does not measure the authors' code"
    with pytest.raises(SystemExit, match=message):
        run_script(monkeypatch, *words, setting="cpu-large")


@pytest.mark.slow  # starts a process for each peer, as the next test does
def test_copy_that_does_not_import(monkeypatch, tmp_path, capsys):
    (tmp_path / "copy" / "fairseq").mkdir(parents=True)
    (tmp_path / "copy" / "fairseq" / "__init__.py").write_text("x = 1 / 0")
    file, figure = tmp_path / "figures.json", tmp_path / "figure.png"
    run_script(monkeypatch, "--authors-repo", tmp_path / "copy", "--json", file, "--figure", figure)

    figures = json.loads(file.read_text())
    assert figures["failed"] == {"authors": "ZeroDivisionError: division by zero"}
    assert "failed: authors: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert figure.stat().st_size > 0
    assert [row["subject"] for row in figures["rows"]] == [
        "mae_lm_eager",
        "roberta_eager",
        "three_ml_eager",
        "roberta_plain_eager",
        "fairseq_roberta",
    ]
    for row in figures["rows"]:
        assert len(row["seconds"]) == len(row["losses"]) == TINY.steps
        assert row["peak_memory_bytes"] > 0
        assert row["text_tokens"] == 64
        assert row["predicted_tokens"] == (32 if row["mask_prob"] == 0.5 else 8)
    assert figures["matrix_gflops"].keys() == {"fp32", "bf16"}
    assert {"mae_lm_step_cost", "three_ml_step_cost", "mae_lm_step_cost_eager", "mfu"} <= figures["ratios"].keys()
    assert figures["flop_bounds"].keys() == figures["ratios"].keys()


@pytest.mark.integration  # starts a process for each peer
def test_directory_without_fairseq(tmp_path):
    authors = subjects(TINY, tmp_path)[0][:1]
    results = measure(TINY, [authors], steps=1, report=lambda line: None)
    assert results.failed == {"authors": f"FileNotFoundError: {tmp_path} has no package fairseq"}


@pytest.mark.integration  # starts a process for each peer
def test_peers_train_on_the_same_batches():
    groups = subjects(replace(TINY, extras=True), None)
    names = ("hf", "fairseq", "roberta_plain", "mae_lm_fairseq_adam")
    peers = [subject for subject in groups[0] if subject.name.startswith(names)]
    results = measure(TINY, [peers], steps=1, report=lambda line: None)
    assert results.failed == {}
    for ragged, count in ((False, 5), (True, 3)):
        rows = [row for row in results.rows if row.case.ragged is ragged]
        assert len(rows) == count
        assert len({(row.text_tokens, row.predicted_tokens) for row in rows}) == 1
        # With random weights the loss is that of guessing.
        assert all(row.losses[0] == pytest.approx(4.6, abs=0.3) for row in rows)
    profiled = [row for row in results.rows if row.operators]
    assert {row.subject.name for row in profiled} == {"roberta_plain_eager"}
    assert all(row.operators["aten::addmm"] > 0 for row in profiled)
    assert "where the time of a step goes" in report.table(results)


@pytest.mark.integration  # starts a process for each peer
def test_hung_process_is_reported(monkeypatch):
    monkeypatch.setattr("benchmark.processes.PATIENCE", 0.01)
    subject = subjects(TINY, None)[0][0]
    results = measure(TINY, [[subject]], steps=1, report=lambda line: None)
    assert results.rows == []
    assert results.failed[subject.name] == "no answer within 0.01 seconds"


@pytest.mark.integration  # starts a process
def test_process_that_dies_between_steps_is_reported(monkeypatch):
    time_step = measurement._time_step

    def step_and_die(process, row):
        time_step(process, row)
        process.process.kill()
        process.process.wait()

    monkeypatch.setattr(measurement, "_time_step", step_and_die)
    subject = subjects(TINY, None)[0][0]
    results = measure(TINY, [[subject]], steps=2, report=lambda line: None)
    assert results.failed == {subject.title: "its process ended with code -9"}


def test_measuring_memory_leaves_no_gradients(tmp_path):
    """Gradients would be added to those of the next step, which is timed."""
    np.savez(tmp_path / "batch.npz", tokens=np.ones((2, 3)), masked=np.zeros((2, 3)))
    spec = {"device": "cpu", "directory": tmp_path, "precision": "fp32"}
    model = torch.nn.Linear(3, 1)
    training = Training(spec, model, lambda tokens, _: tokens.float(), lambda model, batch: (model(batch).sum(), 1, 6))
    assert training.memory("batch.npz", 1) > 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.integration  # starts a process for each peer
def test_no_subject_starts_after_the_deadline():
    groups = subjects(TINY, None)
    results = measure(replace(TINY, minutes=0), groups, steps=1, report=lambda line: None)
    assert set(results.failed) == {subject.name for group in groups for subject in group}


@pytest.mark.parametrize("name", SETTINGS)
def test_names_of_rows_are_unique(name, tmp_path):
    groups = subjects(SETTINGS[name], tmp_path)
    rows = [(subject.name, case) for group in groups for subject in group for case in subject.cases]
    assert len(rows) == len(set(rows))
    assert max(map(len, groups)) <= SETTINGS[name].together
    expected = SETTINGS[name].only or ("mae_lm_eager", "roberta_eager", "three_ml_eager", "authors", "fairseq_roberta")
    assert set(expected) <= {name for name, _ in rows}


def test_ragged_batch():
    batch = draw_batch(Case(128, 16, ragged=True), 1000)
    lengths = (batch.tokens != PAD).sum(1)
    assert len(set(lengths)) > 8
    assert lengths.max() <= 128
    assert not batch.masked[batch.tokens == PAD].any()
    assert batch.predicted == pytest.approx(0.15 * batch.text_tokens, rel=0.1)
    again = draw_batch(Case(128, 16, ragged=True), 1000)
    assert (again.tokens == batch.tokens).all()
    assert (again.masked == batch.masked).all()


def _row(name: str, seconds: list[float], precision: str = "fp32", flops: int = 100) -> Row:
    return Row(Subject(name, "ours", precision), TINY.case(), 64, 8, flops, seconds=seconds, losses=[1.0])


def test_ratios():
    rows = [
        _row("mae_lm", [1.0, 9.0, 1.0]),
        _row("mae_lm_eager", [2.0]),
        _row("mae_lm_bf16_eager", [0.5], "bf16"),
        _row("roberta_eager", [1.6], flops=80),
        _row("authors", [4.0], flops=150),
    ]
    results = Results(TINY, rows, {"fp32": [200e-9], "bf16": [400e-9, 500e-9, 600e-9]})
    ratios, bounds = report.ratios_and_bounds(results)
    assert ratios["authors_speedup"] == 4
    assert ratios["authors_speedup_eager"] == 2
    assert ratios["authors_speedup_bf16"] == 8
    assert ratios["mae_lm_step_cost_eager"] == pytest.approx(2 / 1.6)
    assert ratios["bf16_speedup_eager"] == 4
    assert ratios["mfu"] == pytest.approx(0.5)
    assert bounds["authors_speedup"] == 1.5
    assert bounds["bf16_speedup"] == pytest.approx(2.5)
    assert bounds["authors_speedup_bf16"] == pytest.approx(1.5 * 2.5)
    assert bounds["mae_lm_step_cost"] == pytest.approx(1.25)
    assert "three_ml_step_cost" not in ratios


def test_time_by_kind():
    operators = {"aten::addmm": 0.3, "aten::mm": 0.2, "aten::gelu": 0.1, "aten::ge": 0.1, "aten::add_": 0.2, "new": 0.1}
    fractions = by_kind(operators)
    assert {kind: fraction for kind, fraction in fractions.items() if fraction} == pytest.approx(
        {
            "matrix products of layers and LM head": 0.5,
            "GELU": 0.1,
            "masks of dropout": 0.1,
            "other elementwise operators": 0.2,
            REST: 0.1,
        }
    )


def test_figure_of_a_sweep(tmp_path):
    setting = replace(TINY, sweep_lengths=(8,), sweep_masks=(0.5,))
    rows = [_row("mae_lm_eager", [1.0])]
    rows += [replace(rows[0], case=Case(8, 8)), replace(rows[0], case=setting.case(mask_prob=0.5))]
    draw(Results(setting, rows), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_data_pipeline_against_the_demand_of_a_gpu(data_bin):
    figures = [measure_pipeline(data_bin, 32, 3, flops) for flops in (1e12, 4e14)]
    assert figures[1]["samples_per_second_of_the_gpu"] == pytest.approx(
        400 * figures[0]["samples_per_second_of_the_gpu"]
    )
    for each in figures:
        need = each["samples_per_second_of_the_gpu"] / each["samples_per_second_of_a_worker"]
        assert need <= each["workers_needed"] < need + 1


@pytest.mark.integration  # builds models of size tiny
@pytest.mark.parametrize("options", [[], ["--no-bias"], ["--bf16"]])
def test_features_are_compared_with_transformers(options, monkeypatch, tmp_path, capsys):
    words = ["--size", "tiny", "--sentences", "20", "--rounds", "1", *options, "--json", str(tmp_path / "json")]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / "benchmark.py"), "features", *words])
    runpy.run_path(str(ROOT / "scripts" / "benchmark.py"), run_name="__main__")
    found = json.loads((tmp_path / "json").read_text())
    assert found["command"] == shlex.join(["scripts/benchmark.py", "features", *words])
    assert found["versions"]["torch"] == version("torch")
    assert found["seconds"].keys() == {"ours", "transformers", "transformers, sorted"}
    # Sums in another order; bfloat16 has 8 bits, and the last layer norm's output is about 4 at most.
    assert found["difference"] < (0.1 if "--bf16" in options else 1e-5)
    assert "products of attention" in capsys.readouterr().out
