"""Stage 3: training steps side by side with the peers, on one recorded ragged batch."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmark.day_one.corpus import write_data_bin
from benchmark.day_one.scale import Scale
from benchmark.day_one.stages import ROOT, environment
from benchmark.settings import SETTINGS

KEPT = ("subject", "precision", "tokens_per_second", "mfu", "peak_memory_bytes", "median_seconds")
SEQUENCES = 200
STEPS = "steps.json"
"""File of ``scripts/benchmark.py``."""


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's only measurement."""
    return [("steps beside the peers", partial(_steps, scale, work))]


def _steps(scale: Scale, work: Path) -> dict:
    """Run ``scripts/benchmark.py``, which writes its JSON after every row, and return the main values of the rows.

    Raises:
        RuntimeError: if it failed, or measured nothing.
    """
    setting = SETTINGS[scale.setting]
    data = write_data_bin(work / "data-bin", setting.vocab_size, SEQUENCES * setting.length)
    file = work / STEPS
    program = [sys.executable, str(ROOT / "scripts" / "benchmark.py"), "--setting", scale.setting]
    files = ["--data-bin", str(data), "--json", str(file)]
    done = subprocess.run([*program, *scale.peers_limits, *files], env=environment(), stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark.py ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    steps = read_steps(file)
    if not steps["rows"]:
        raise RuntimeError(f"nothing was measured: {steps['not_measured']}")
    return steps


def read_steps(file: Path) -> dict:
    """Return the main values of the rows so far."""
    results = json.loads(file.read_text(encoding="utf-8"))
    rows = [{name: row.get(name) for name in KEPT} for row in results["rows"]]
    return {"rows": rows, "not_measured": results["failed"], "ratios": results["ratios"]}
