"""The programme for the first GPU, rehearsed on a CPU at a tiny size."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmark import gpu_day_one
from benchmark.day_one import pretraining, stages
from benchmark.day_one.corpus import draw_text, write_data_bin
from benchmark.day_one.page import write_report
from benchmark.day_one.record import RUNNING, Record, read_record
from benchmark.day_one.scale import SCALES
from benchmark.day_one.stages import STAGES, record_path
from mae_lm_fairseq.text.data_bin import check_data_bin
from tests.support.processes import wait_for

TEXT = [119, 315, 22, 131, 8, 33, 338, 363, 7, 26, 28, 173]
"""First tokens of the text with 495 words."""


def run_program(*words):
    command = [sys.executable, gpu_day_one.__file__, *map(str, words), "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.integration  # starts a process
def test_environment(tmp_path):
    done = run_program(0, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    record = read_record(record_path(tmp_path, "environment"))
    assert (record["state"], record["failed"], len(record["measurements"])) == ("done", 0, record["planned"])
    by_name = {each["name"]: each for each in record["measurements"]}
    assert by_name["attention, width 435, bias trained"]["median_ms"] > 0
    assert by_name["attention, width 435, bias trained"]["kernels"]
    assert by_name["doctor"]["findings"]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "| attention, width 512, bias none | 512 | none | yes |" in page
    assert "## 5 curves\n\nThe stage has not run." in page


@pytest.mark.integration  # trains
def test_pretraining(tmp_path):
    scale = replace(SCALES["cpu"], precisions={"fp32": SCALES["cpu"].precisions["fp32"]})
    values = {name: measure() for name, measure in pretraining.measurements(scale, tmp_path)}
    trained = values["pretraining, fp32"]
    assert len(trained["losses"]) == scale.updates
    assert trained["last_loss"] < trained["first_loss"]
    assert trained["tokens_per_second"] > 0
    assert trained["of_matrix_rate"] > 0
    assert trained["mfu"] is None  # a CPU has no data sheet
    assert sum(values["profile, fp32"]["time_by_kind"].values()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["tests", "pretrain", "peers", "resume", "curves", "kernels"])
def test_stage(stage, tmp_path):
    done = run_program(stage, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(record_path(tmp_path, stage))
    assert len(record["measurements"]) == record["planned"] > 0


@pytest.mark.integration  # starts a process
def test_stage_that_is_killed_leaves_its_measurements(tmp_path):
    path = record_path(tmp_path, "environment")
    command = [sys.executable, "-m", "benchmark.day_one.worker", "environment", str(path), "cpu"]
    worker = subprocess.Popen(command, env=stages.environment(rehearsal=True), start_new_session=True)
    wait_for(lambda: path.exists() and read_record(path)["measurements"])
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    record = read_record(path)
    assert record["state"] == RUNNING
    assert 0 < len(record["measurements"]) < record["planned"]


def test_all_stages_run_after_a_failure(tmp_path, monkeypatch):
    seen = []

    def run(name, out, device):
        seen.append(name)
        return "broken" if name == "tests" else None

    monkeypatch.setattr(gpu_day_one, "run_stage", run)
    with pytest.raises(SystemExit, match=r"^failed: tests \(broken\)$"):
        gpu_day_one.main(gpu_day_one.DayOneOptions("all", tmp_path, "cpu"))
    assert seen == list(STAGES)
    assert (tmp_path / "report.md").exists()


def test_failed_measurements_are_counted(tmp_path):
    record = Record(tmp_path / "0-environment.json", "environment", "cpu", planned=2)
    record.add("one", {"seconds": 1.5, "rows": [{"kernel": "a|b"}]})
    record.add("two", {"error": "no memory"})
    assert read_record(record.path)["failed"] == 1
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "running: 2 of 2 measurements, 1 failed." in page
    assert "| two | no memory |" in page
    assert "| a/b |" in page


def test_text_is_the_same_everywhere(tmp_path):
    data = write_data_bin(tmp_path / "data-bin", 500, 5_000)
    lines, tokens = check_data_bin(data / "train")
    text, sizes = draw_text(495, 5_000, 1)
    assert (lines, tokens) == (len(sizes), len(text))
    assert text[:12].tolist() == TEXT
    ends = sizes.cumsum() - 1
    assert (text[ends] == 2).all()
    assert (np.delete(text, ends) >= 4).all()
    assert text.max() < 499
    assert (sizes == 1).sum() == -(-lines // 16)  # fairseq takes an empty line for the end of a document
