#!/usr/bin/env python3
"""Measure on a GPU what CPUs cannot show: compiled layers, forms of the attention kernel, steps, resuming.

"all" takes at most 560 s. Every measurement is a process of its own with a time limit, and gpu.json is written after
each. Stages: environment; agreement (the operator beside the equations, compiled layers beside eager ones); attention
(forms of the kernel); steps (pause, step, host and kernel time, memory); ragged (recompilations); resume (killed and
resumed, compared bit by bit); sizes (larger batches). Each rule of docs/performance.md gives a decision. There are no
data to carry. ``--device cpu`` is a rehearsal at a tiny size, in this process.

Example:
    scripts/benchmark/gpu.py all --out gpu
    scripts/benchmark/gpu.py steps --out rehearsal --device cpu
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # neither this package nor scripts/ need be installed

from mae_lm_fairseq.utils.command_line import Argument, Options, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import make_output_directory, write_json  # noqa: E402
from mae_lm_fairseq.utils.versions import provenance  # noqa: E402

LIMIT_SECONDS = 560
BARS_MS = {"RoBERTa": 40.0, "MAE-LM": 43.0}
"""35 % of an H100's data sheet for 64 documents of 367 tokens."""
GAIN, PAUSE_SECONDS, HOST_FRACTION, ELEMENTWISE_MS = 0.05, 30.0, 0.9, 11.0
TILES = ((64, 32), (64, 64), (64, 128))
VARIANTS = ("eager", "compiled", "compiled, float32 between layers")


class Row(NamedTuple):
    """A measurement: function of :mod:`benchmark.gpu_rows`, its arguments, and its time limit."""

    function: str
    arguments: dict
    seconds: float = 45

    @property
    def title(self) -> str:
        """The function and its arguments, of paths the names of the files."""
        return ", ".join([self.function, *(Path(str(value)).stem for value in self.arguments.values())])


def stages(device: str, work: Path) -> dict[str, list[Row]]:
    """Return the measurements of each stage, in their order; a rehearsal has fewer."""
    on_gpu = device == "cuda"
    models = ("RoBERTa", "MAE-LM", "3ML") if on_gpu else ("MAE-LM",)
    killed, once = str(work / "killed.pt"), str(work / "once.pt")
    return {
        "environment": [Row("environment", {})],
        "agreement": [
            *(
                Row("operator_difference", {"dtype": dtype})
                for dtype in ("float32", "float16", "bfloat16")[: 3 if on_gpu else 1]
            ),
            Row("compiled_difference", {"model": "MAE-LM"}, 60),
        ],
        "attention": list(_forms(on_gpu)),
        "steps": [
            Row("step", {"model": model, "variant": name})
            for model in models
            for name in VARIANTS[: 3 if on_gpu else 2]
        ],
        "ragged": [Row("ragged", {"model": "MAE-LM", "batches": 20 if on_gpu else 3}, 70)],
        "resume": [
            # A rehearsal does not kill its own process: the first run ends there.
            Row("train", {"path": killed, "updates": 2, "is_killed": on_gpu}),
            Row("train", {"path": killed, "updates": 4}),
            Row("train", {"path": once, "updates": 4}),
            Row("compare", {"one": killed, "other": once}),
        ],
        "sizes": [
            Row("step", {"model": model, "variant": "compiled", "rows": rows})
            for model in models[:2]
            for rows in ((128, 256) if on_gpu else ())
        ],
    }


def _forms(on_gpu: bool) -> Iterator[Row]:
    from benchmark.forms import FORMS

    for name in FORMS:
        for block_q, block_k in TILES if on_gpu else TILES[:1]:
            if "words" not in name or block_k == 32:
                for number in (1, 2, 3) if on_gpu else (2,):
                    tiles = {"form": name, "block_q": block_q, "block_k": block_k, "stages": number}
                    yield Row("attention", tiles, 20)
                    if on_gpu and number == 2:
                        yield Row("attention", tiles | {"length": 512}, 20)


def decisions(rows: dict[str, dict[str, dict]]) -> dict[str, str]:
    """Apply the rules to what was measured."""
    found = {}
    for title, row in rows.get("agreement", {}).items():
        if "difference" in row and not row["difference"] <= row["tolerance"]:
            found[title] = "beyond tolerance: no compiled stages"
    found |= _decide_forms(
        {title: row["sum_ms"] for title, row in rows.get("attention", {}).items() if "sum_ms" in row}
    )
    for title, row in rows.get("steps", {}).items():
        if "step_ms" in row and ", compiled" in title:
            found[title] = "; ".join(_findings(title, row)) or "passes"
    for row in rows.get("ragged", {}).values():
        if row.get("recompilations"):
            found["ragged"] = f"{row['recompilations']} recompilations after the warm-up: not the default"
    if (compared := rows.get("resume", {}).get("compare, killed, once")) and not compared.get("bit_equal"):
        found["resume"] = "differs: eager stays the default; look at splits and autotuning"
    return found


def _decide_forms(times: dict[str, float]) -> dict[str, str]:
    faster = {}
    for title, own in ((each, times[each]) for each in times if "today, 64, 32, 2" in each):
        ending = title.partition("today, 64, 32, 2")[2]
        others = {name: time for name, time in times.items() if name.count(",") and (", 512" in name) == bool(ending)}
        best = min(others, key=others.get)
        gain = 1 - others[best] / own
        faster[f"kernel{ending}"] = f"{best}: {gain:.0%} faster, {'adopt' if gain >= GAIN else 'keep today'}"
    return faster


def _findings(title: str, row: dict) -> Iterator[str]:
    if row["pause_s"] > PAUSE_SECONDS:
        yield f"pause of {row['pause_s']:.0f} s"
    if row["host_ms"] > HOST_FRACTION * row["step_ms"]:
        yield "the host limits: before kernels"
    elementwise = sum(time for name, time in row["kernels"].items() if name.startswith(("triton_", "void at::native")))
    if elementwise > ELEMENTWISE_MS:
        yield f"elementwise kernels take {elementwise:.0f} ms: profile"
    if (bar := next((bar for model, bar in BARS_MS.items() if model in title), None)) and row["step_ms"] > bar:
        yield f"{row['step_ms']:.1f} ms, above {bar:.0f}"


def measure(row: Row, device: str, seconds: float) -> dict:
    """Run a measurement, on a GPU in a process of its own, and return its values or its error."""
    began = time.monotonic()
    try:
        values = _in_a_process(row, device, seconds) if device == "cuda" else _here(row)
    except Exception as problem:  # the other measurements are still wanted
        values = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[-400:]}"}
    return values | {"took_s": round(time.monotonic() - began, 2)}


def _here(row: Row) -> dict:
    from benchmark.gpu_rows import ROWS

    return ROWS[row.function]("cpu", **row.arguments)


def _in_a_process(row: Row, device: str, seconds: float) -> dict:
    command = [sys.executable, "-m", "benchmark.gpu_rows", row.function, device, json.dumps(row.arguments)]
    paths = [str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode == -9 and row.arguments.get("is_killed"):
        return {"killed": True}
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class GpuOptions(Options):
    """Options of the programme.

    Attributes:
        stage: a stage, or all.
        out: directory for gpu.json and the states of the resumed training.
        device: cpu rehearses the programme at a tiny size.
    """

    stage: Annotated[
        Literal["all", "environment", "agreement", "attention", "steps", "ragged", "resume", "sizes"],
        Argument("STAGE", positional=True),
    ]
    out: Annotated[Path, Argument("DIR")]
    device: Literal["cuda", "cpu"] = "cuda"


def main(options: GpuOptions) -> None:
    """Measure, print and write the decisions.

    Raises:
        SystemExit: if a measurement failed; the others ran.
    """
    make_output_directory(options.out)
    for state in options.out.glob("*.pt"):
        state.unlink()
    began, failed = time.monotonic(), []
    command = f"scripts/benchmark/gpu.py {options.stage} --device {options.device}"  # no path of a machine
    record = provenance() | {"command": command, "complete": False, "rows": {}, "decisions": {}}
    for stage, rows in stages(options.device, options.out).items():
        for row in rows if options.stage in ("all", stage) else ():
            left = LIMIT_SECONDS - (time.monotonic() - began)
            is_useless = "beyond tolerance" in str(record["decisions"]) and "compiled" in str(row.arguments)
            if left < 5 or is_useless:
                values = {"error": "no time left" if left < 5 else "compiled layers are beyond tolerance"}
            else:
                values = measure(row, options.device, min(row.seconds, left))
            record["rows"].setdefault(stage, {})[row.title] = values
            record["decisions"] = decisions(record["rows"])
            write_json(options.out / "gpu.json", record)
            failed += [row.title] if "error" in values else []
            shown = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
            print(f"{stage}: {row.title}: {shown}", flush=True)
    write_json(options.out / "gpu.json", record | {"complete": True})
    for name, decision in record["decisions"].items():
        print(f"{name}: {decision}")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(GpuOptions, sys.argv[1:], __doc__, "gpu.py"))
