"""The programme for GPUs, rehearsed on a CPU at a tiny size."""

import inspect
import json
import os
import subprocess
import sys

import pytest

from benchmark import gpu
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT

# Layers are compiled without C++, which takes a minute.
REHEARSAL = """
import functools, sys, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
from benchmark.gpu import GpuOptions, main
from pathlib import Path
for stage in sys.argv[2:]:
    main(GpuOptions(stage, Path(sys.argv[1], stage), "cpu"))
"""


def rehearse(directory, *stages):
    """Return the measurements of some stages."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    command = [sys.executable, "-c", REHEARSAL, str(directory), *stages]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = {}
    for stage in stages:
        record = read_json(directory / stage / "gpu.json")
        assert record["complete"]
        assert str(directory) not in json.dumps(record)
        rows |= record["rows"]
    return rows


@pytest.mark.integration  # compiles
def test_rehearsal(tmp_path):
    rows = rehearse(tmp_path, "steps", "graphs", "resume")
    graphed = rows["graphs"]["graphed, MAE-LM, eager"]
    assert graphed["unequal"] == 0
    assert graphed["dropout_changes"]
    assert len(graphed["capture_s"]) == 3
    assert rows["checks"]["compiled_difference, MAE-LM"]["difference"] < 1e-6
    for name in ("eager", "compiled"):
        assert rows["checks"][f"repeated, MAE-LM, {name}"]["unequal_gradients"] == []
    assert rows["steps"]["step, MAE-LM, compiled"]["graphs"] == 3
    assert rows["checks"]["ragged, MAE-LM, 3"]["recompilations"] == 0
    assert [row["unequal"] for title, row in rows["resume"].items() if "compare" in title] == [0, 0, 0]


@pytest.mark.slow  # starts fairseq-train seven times
def test_rehearsal_of_trainings(tmp_path):
    rows = rehearse(tmp_path, "trainer", "models")
    trainer = rows["trainer"]
    assert trainer["trained, MAE-LM, graphs"]["update_ms"] > 0
    assert trainer["resumed, MAE-LM, graphs"]["unequal"] == 0
    assert trainer["resumed, MAE-LM, graphs"]["tensors"] > 100
    assert trainer["ranks, MAE-LM"]["difference"] <= trainer["ranks, MAE-LM"]["tolerance"]
    assert trainer["one_rank, MAE-LM"]["unequal"] == 0
    assert [row["models"] for row in rows["models"].values()] == [1, 1, 2, 2]


def test_every_measurement_has_its_function_and_its_own_title(tmp_path):
    for device in ("cuda", "cpu"):
        for rows in gpu.stages(device, tmp_path).values():
            assert {row.function for row in rows} <= gpu.functions().keys()
            for row in rows:
                inspect.signature(gpu.functions()[row.function]).bind(device, **row.arguments)
            assert len({row.title for row in rows}) == len(rows)


def test_decisions_on_graphs():
    """Each rule on its own: what passes, and what is one step beyond."""
    steps = {"unequal": 0, "dropout_changes": True, "memory": 114, "ungraphed_memory": 100, "mfu": 0.36}
    trained = {"update_ms": 64.0}
    resumed = {"unequal": 0, "second_start_s": 14.9}
    ranks = {"difference": 0.005, "tolerance": 0.005}
    large, timed = "graphed, MAE-LM, compiled, 256", "trained, MAE-LM, graphs"
    passing = {"graphs": {large: steps}, "trainer": {timed: trained, "resumed": resumed, "ranks": ranks}}
    assert gpu.decisions(passing) == dict.fromkeys([large, timed, "resumed", "ranks"], "passes")
    failing = [
        ("graphs", large, steps | {"unequal": 2}, "2 tensors differ in a bit"),
        ("graphs", large, steps | {"dropout_changes": False}, "dropout does not follow the seed"),
        ("graphs", large, steps | {"memory": 116}, "1.16 times the memory, above 1.15"),
        ("graphs", large, steps | {"mfu": 0.355}, "35.5% of the data sheet, below 36%"),
        ("trainer", timed, {"update_ms": 64.1}, "64.1 ms per update, above 64"),
        ("trainer", "trained, RoBERTa, graphs", {"update_ms": 58.1}, "58.1 ms per update, above 58"),
        ("trainer", "resumed", resumed | {"unequal": 1}, "1 tensors differ in a bit"),
        ("trainer", "resumed", resumed | {"second_start_s": 15.0}, "second start takes 15 s"),
        ("trainer", "ranks", ranks | {"difference": 0.006}, "losses differ by 0.006"),
    ]
    for stage, title, row, decision in failing:
        assert gpu.decisions({stage: {title: row}}) == {title: decision}
    kernels = {"graphs": {"graphed, MAE-LM, eager": {"kernel_ms": 58.04}}, "trainer": {timed: trained}}
    assert gpu.decisions(kernels)[timed] == "passes (kernels of a step: 58.0 ms)"
    # The rate is a rule for many documents, and trainings without graphs are there for comparison.
    small = {"graphed, MAE-LM, eager": steps | {"mfu": 0.2}}
    assert gpu.decisions({"graphs": small}) == {"graphed, MAE-LM, eager": "passes"}
    assert gpu.decisions({"trainer": {"trained, MAE-LM, eager": {"update_ms": 96.0}}}) == {}


def test_what_is_timed_runs_alone(tmp_path):
    """Rows that may run beside others are neighbours of a stage, so that nothing that is timed waits between them."""
    for rows in gpu.stages("cuda", tmp_path).values():
        for row in rows:
            is_timed = row.function in ("step", "graphed", "trained", "at_once")
            assert row.is_alone or not (is_timed or row.arguments.get("variant") == "compiled graphs")


def test_decisions():
    step = {"pause_s": 31, "host_ms": 41, "step_ms": 42, "kernels": {"triton_poi": 12}}
    rows = {
        "checks": {
            "compiled_difference": {"difference": float("nan"), "tolerance": 0.02},
            "repeated": {"unequal_gradients": ["weight", "bias"]},
            "ragged": {"recompilations": 1},
        },
        "steps": {"step, RoBERTa, eager": step, "step, RoBERTa, compiled": step},
        "resume": {"compare, killed, once": {"unequal": 1}, "compare, again, once": {"unequal": 0}},
    }
    assert gpu.decisions(rows) == {
        "compiled_difference": "beyond tolerance: compiled layers are wrong",
        "repeated": "not the default: gradients differ when repeated: weight, bias",
        "step, RoBERTa, compiled": "pause of 31 s; the host limits: before kernels; elementwise kernels take 12 ms: "
        "profile; 42.0 ms, above 40",
        "ragged": "1 recompilations after the warm-up: not the default",
        "resume": "differs, unlike two equal runs: not the default",
    }
    passing = step | {"pause_s": 20, "host_ms": 20, "kernels": {}, "step_ms": 39}
    assert gpu.decisions({"steps": {"step, RoBERTa, compiled": passing}}) == {"step, RoBERTa, compiled": "passes"}


def test_what_was_measured_stays(tmp_path, monkeypatch):
    """A failure does not end the programme, and the record is written after every measurement."""
    written = []

    def measure(row, device, end):
        written.append((tmp_path / "gpu.json").exists())
        return {"error": "broken"} if row.function == "compiled_difference" else {"graphs": 1}

    monkeypatch.setattr(gpu, "measure", measure)
    with pytest.raises(SystemExit, match=r"^failed: compiled_difference, MAE-LM$"):
        gpu.main(gpu.GpuOptions("all", tmp_path, "cpu"))
    assert written == [False, *[True] * (len(written) - 1)]
