"""The programme for GPUs, rehearsed on a CPU at a tiny size."""

import json
import os
import subprocess
import sys

import pytest

from benchmark import gpu
from tests.support import ROOT

# Layers are compiled without C++, which takes a minute.
REHEARSAL = """
import functools, sys, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
from benchmark.gpu import GpuOptions, main
from pathlib import Path
main(GpuOptions("all", Path(sys.argv[1]), "cpu"))
"""


@pytest.mark.integration  # compiles
def test_rehearsal(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    command = [sys.executable, "-c", REHEARSAL, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = json.loads((tmp_path / "gpu.json").read_text())
    rows = record["rows"]
    assert record["complete"]
    assert rows["checks"]["compiled_difference, MAE-LM"]["difference"] < 1e-6
    for name in ("eager", "compiled"):
        assert rows["checks"][f"repeated, MAE-LM, {name}"]["unequal_gradients"] == []
    assert rows["steps"]["step, MAE-LM, compiled"]["graphs"] == 3
    assert rows["checks"]["ragged, MAE-LM, 3"]["recompilations"] == 0
    assert [row["unequal"] for title, row in rows["resume"].items() if "compare" in title] == [0, 0, 0]
    assert str(tmp_path) not in json.dumps(record)


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
