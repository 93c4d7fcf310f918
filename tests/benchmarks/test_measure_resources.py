"""scripts/benchmark/measure_resources.py; end_to_end/test_training_settings.py watches trainings with it."""

import runpy
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from benchmark import measure_resources
from benchmark.measure_resources import figures
from mae_lm_fairseq.utils.allocator import CAPACITIES
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT


def test_figures():
    unlimited = SimpleNamespace(seconds=[10.0, 20.0, 30.0])
    ours = SimpleNamespace(updates=[100, 200, 300, 400], bytes=[80, 90, 100, 102], seconds=[11.0, 20.8, 31.2, 44.0])
    measured = figures(ours, unlimited)
    assert measured["peak_bytes"] == 102
    assert measured["growth"] == pytest.approx(0.02)  # since update 300
    assert measured["cost_of_limits"] == pytest.approx(0.01)  # 20.2 s in place of 20 after the first 100 updates


def test_every_record_is_written(tmp_path, capsys):
    results, file = {"trainings": [{"preset": "earlier"}, {}]}, tmp_path / "resources.json"
    record = partial(measure_resources.record, file, results)
    row = {"preset": "mae_lm_tiny", "precision": "fp32", "peak_bytes": 9e6}
    for updates in ([100], [100, 200]):
        record(row | {"ours": {"updates": updates, "bytes": [9e6] * len(updates)}})
        rows = read_json(file)["trainings"]
        assert [rows[0]["preset"], rows[1]["ours"]["updates"]] == ["earlier", updates]
    assert "mae_lm_tiny, fp32, 200 updates; 9 MB" in capsys.readouterr().out


@pytest.mark.parametrize("name", CAPACITIES)
def test_exported_limits_are_refused(monkeypatch, tmp_path, name):
    """Exported limits would hide a training that sets none."""
    program = str(ROOT / "scripts/benchmark/measure_resources.py")
    for capacity in CAPACITIES:
        monkeypatch.delenv(capacity, raising=False)
    monkeypatch.setenv(name, "64")
    monkeypatch.setattr(sys, "argv", [program, "--json", str(tmp_path / "json")])
    with pytest.raises(SystemExit, match=f"error: {name} is exported; unset it"):
        runpy.run_path(program, run_name="__main__")
