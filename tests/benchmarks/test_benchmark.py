"""scripts/benchmark.py at a size that only shows that it works."""

import contextlib
import runpy
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch

from benchmark import measurement, processes, report
from benchmark.batches import PAD, Case, record_batch, vocabulary_size, write_text
from benchmark.data import measure_pipeline
from benchmark.measurement import Results, Row, measure
from benchmark.settings import SETTINGS, Subject, feasible, subjects
from benchmark.workers.training import Training
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT
from tests.support.processes import wait_for
from tests.support.refusals import refused

TINY = SETTINGS["cpu-tiny"]


def run_script(monkeypatch, *arguments, setting="cpu-tiny"):
    """Run scripts/benchmark.py in this process."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--setting", setting, *map(str, arguments)])
    runpy.run_path(str(ROOT / "scripts/benchmark.py"), run_name="__main__")


def test_a_cpu_without_bf16_measures_the_rest(monkeypatch):
    """The first product in bfloat16 took longer than the time limit, so that nothing was measured."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    setting = feasible(SETTINGS["cpu-small"])
    groups = subjects(setting, None)
    assert {subject.precision for group in groups for subject in group} == {"fp32"}
    assert [*Results(setting).matrix_gflops] == ["fp32"]
    assert Results(setting).failed == {"bf16": "left out: this CPU has no instructions for it"}


def test_a_step_does_not_outlast_the_time_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "AFTER_THE_LIMIT", 0.2)
    monkeypatch.setattr(processes, "WORKER", tmp_path / "worker.py")
    processes.WORKER.write_text("import time; time.sleep(60)")
    subject = Subject("mae_lm", "ours", "fp32")
    process = processes.Process(subject, TINY, tmp_path, 1, time.monotonic())
    with contextlib.closing(process), pytest.raises(processes.SubjectFailed, match="no answer within"):
        process.answer()


@pytest.mark.slow  # starts a process for each peer
def test_copy_that_does_not_import(monkeypatch, tmp_path, capsys):
    (tmp_path / "copy/fairseq").mkdir(parents=True)
    (tmp_path / "copy/fairseq/__init__.py").write_text("x = 1 / 0")
    file, figure = tmp_path / "figures.json", tmp_path / "figure.png"
    run_script(monkeypatch, "--authors-repo", tmp_path / "copy", "--json", file, "--figure", figure)

    figures = read_json(file)
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
    assert figures["complete"]
    for row in figures["rows"]:
        assert len(row["seconds"]) == len(row["losses"]) == TINY.steps
        assert row["peak_memory_bytes"] > 0
        batch = figures["batches"][str(Case(row["length"], row["rows"], row["mask_prob"]))]
        assert row["text_tokens"] == sum(batch["tokens"]) <= 64
        assert row["predicted_tokens"] == sum(batch["masks"])
    assert figures["matrix_gflops"].keys() == {"fp32", "bf16"}
    assert {"mae_lm_step_cost", "three_ml_step_cost", "mae_lm_step_cost_eager", "mfu"} <= figures["ratios"].keys()
    assert figures["flop_bounds"].keys() == figures["ratios"].keys()


@pytest.mark.slow  # starts a process for each peer
def test_peers_train_on_the_same_batches():
    groups = subjects(replace(TINY, extras=True), None)
    names = ("hf", "fairseq", "roberta_plain", "mae_lm_fairseq_adam", "mae_lm_sdpa")
    peers = [subject for subject in groups[0] if subject.name.startswith(names)]
    results = measure(TINY, [peers], steps=1, report=lambda line: None)
    assert results.failed == {}
    assert results.complete
    assert {row.subject.name for row in results.rows} == {
        *("hf_roberta", "hf_modernbert", "hf_mpnet", "fairseq_roberta", "roberta_plain_eager"),
        *("mae_lm_fairseq_adam", "mae_lm_sdpa", "roberta_plain_sdpa"),
    }
    assert len({(row.text_tokens, row.predicted_tokens) for row in results.rows}) == 1
    # With random weights the loss is that of guessing.
    assert all(row.losses[0] == pytest.approx(4.6, abs=0.3) for row in results.rows)
    profiled = [row for row in results.rows if row.operators]
    assert {row.subject.name for row in profiled} == {"roberta_plain_eager", "roberta_plain_sdpa", "mae_lm_sdpa"}
    assert all(row.operators["aten::addmm"] > 0 for row in profiled)
    assert "where the time of a step goes" in report.table(results)


@pytest.mark.integration  # starts a process
def test_process_that_dies_between_steps_is_reported(monkeypatch):
    time_step = measurement._Run.time_step

    def step_and_die(run, process, row):
        time_step(run, process, row)
        process.process.kill()
        process.process.wait()

    monkeypatch.setattr(measurement._Run, "time_step", step_and_die)
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
def test_no_subject_or_step_starts_after_the_deadline(monkeypatch):
    groups = subjects(TINY, None)

    def save(results):
        if results.rows:
            monkeypatch.setattr(measurement._Run, "is_late", True)

    (row,) = measure(TINY, [groups[0][:1]], steps=100, report=lambda line: None, save=save).rows
    assert len(row.seconds) == 1


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    directory = tmp_path_factory.mktemp("invented")
    write_text(directory, 1000, 40_000)
    return directory


@pytest.mark.parametrize("mask_prob", [0.15, 0.5])
def test_a_batch_is_as_in_training(invented, mask_prob):
    """Sequences of similar length, and as many masks as fairseq draws: the fraction, rounded at random."""
    batch = record_batch(invented, Case(128, 16, mask_prob))
    lengths = (batch.tokens != PAD).sum(1)
    assert 64 < lengths.min() <= lengths.max() <= 128
    assert lengths.max() - lengths.min() < 8
    assert not batch.masked[batch.tokens == PAD].any()
    assert np.isin(batch.masked.sum(1) - np.floor(mask_prob * lengths), [0, 1]).all()
    assert batch.is_ragged
    assert (batch.tokens[:, 0] == 0).all()  # <s>
    assert batch.tokens.max() < 999  # the original tokens, without <mask>
    again = record_batch(invented, Case(128, 16, mask_prob))
    assert (again.tokens == batch.tokens).all()
    assert (again.masked == batch.masked).all()


def test_a_batch_of_a_data_bin(data_bin):
    assert vocabulary_size(data_bin) == 209  # with <mask>
    batch = record_batch(data_bin, Case(32, 8))
    assert batch.tokens.shape[0] == 8
    assert batch.tokens.shape[1] <= 32
    with refused("4000"):
        record_batch(data_bin, Case(32, 4000))


@pytest.mark.integration  # starts a process for each subject
@pytest.mark.slow  # half precision is slow on CPUs
def test_half_precision_of_every_kind():
    setting = replace(TINY, precisions=("fp32", "fp16"), extras=True)
    names = ("mae_lm_fp16_eager", "fairseq_roberta_fp16", "hf_roberta_fp16")
    setting = replace(setting, only=names)
    results = measure(setting, subjects(setting, None), steps=3, report=lambda line: None)
    assert results.failed == {}
    rows = {row["subject"]: row for row in report.as_json(results)["rows"]}
    assert list(rows) == list(names)
    fp16_optimizer = "weights in float16, fairseq's FP16Optimizer, as with --fp16"
    assert [row["method"] for row in rows.values()] == [*[fp16_optimizer] * 2, "torch.autocast and GradScaler"]
    for row in rows.values():
        assert row["losses"][0] == pytest.approx(4.6, abs=0.3)
        assert len(set(row["losses"])) > 1  # the optimizer has changed the weights
        assert row["mfu"] > 0


@pytest.mark.slow  # traces a model
def test_failed_compilation_is_not_measured_as_eager(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    setting = replace(TINY, compiled=("fp32",), only=("mae_lm",))
    results = measure(setting, subjects(setting, None), steps=1, report=lambda line: None)
    assert results.rows == []
    assert "/no/compiler" in results.failed["mae_lm"]


@pytest.mark.integration  # starts a process
def test_killed_run_leaves_its_rows(data_bin, tmp_path):
    file = tmp_path / "figures.json"
    words = ["--setting", "cpu-tiny", "--data-bin", data_bin, "--only", "mae_lm_eager", "--json", file]
    command = [sys.executable, ROOT / "scripts/benchmark.py", *words, "--steps", "1000000"]
    run = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, cwd=ROOT)
    try:
        wait_for(lambda: file.exists())
        assert read_json(file)["rows"] == []
        wait_for(lambda: len(read_json(file)["rows"]) == 1)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    figures = read_json(file)
    assert figures["complete"] is False
    (row,) = figures["rows"]
    assert row["subject"] == "mae_lm_eager"
    assert row["median_seconds"] > 0
    assert figures["setting"]["data_bin"] == str(data_bin)
    assert figures["setting"]["vocab_size"] == 209
    assert figures["command"].startswith("scripts/benchmark.py --setting cpu-tiny")


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


def test_data_pipeline_against_the_demand_of_a_gpu(data_bin):
    figures = [measure_pipeline(data_bin, 32, 3, flops) for flops in (1e12, 4e14)]
    assert figures[1]["samples_per_second_of_the_gpu"] == pytest.approx(
        400 * figures[0]["samples_per_second_of_the_gpu"]
    )
    for figure in figures:
        need = figure["samples_per_second_of_the_gpu"] / figure["samples_per_second_of_a_worker"]
        assert need <= figure["workers_needed"] < need + 1


@pytest.mark.integration  # builds models of size tiny
@pytest.mark.parametrize("options", [["--no-bias"], ["--bf16"]])
def test_features_are_compared_with_transformers(options, monkeypatch, tmp_path, capsys):
    words = ["--size", "tiny", "--sentences", "20", "--rounds", "1", *options, "--json", str(tmp_path / "json")]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts/benchmark.py"), "features", *words])
    runpy.run_path(str(ROOT / "scripts/benchmark.py"), run_name="__main__")
    record = read_json(tmp_path / "json")
    assert record["command"] == shlex.join(["scripts/benchmark.py", "features", *words])
    assert record["versions"]["torch"] == version("torch")
    assert record["seconds"].keys() == {"ours", "transformers", "transformers, sorted"}
    # Sums in another order; bfloat16 has 8 bits, and the last layer norm's output is about 4 at most.
    assert record["difference"] < (0.1 if "--bf16" in options else 1e-5)
    assert "products of attention" in capsys.readouterr().out
