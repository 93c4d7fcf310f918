#!/usr/bin/env python3
"""Measure on a GPU what CPUs cannot show: steps, CUDA graphs, fairseq-train, compiled layers, resuming.

"all" takes at most 560 s. Every measurement is a process of its own with a time limit, and gpu.json is written after
each; what there is no time for fails, and runs as a stage of its own. Stages, the most important first: steps (pause,
step, host and kernel time, memory; eager and compiled), graphs (a step as one CUDA graph, compared with one without in
time and bit by bit), trainer (fairseq-train with ``--cuda-graphs`` and without, killed and resumed, on two ranks),
checks (the operator beside the equations, compiled layers beside eager ones, gradients that differ when repeated,
recompilations), resume (killed and resumed, compared bit by bit), models (of the main-sentence experiment, one and
twelve at once), variants (of compilation, model and size). What is not timed runs side by side. Each rule of
docs/developers/gpu.md gives a decision. There are no data to carry. ``--device cpu`` is a rehearsal at a tiny size, in
this process.

Example:
    scripts/benchmark/gpu.py all --out gpu
    scripts/benchmark/gpu.py steps --out rehearsal --device cpu
"""

import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
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
PAUSE_SECONDS, HOST_FRACTION, ELEMENTWISE_MS = 30.0, 0.9, 11.0
TRAINER_MS = {"RoBERTa": 58.0, "MAE-LM": 64.0}
"""Per update of 64 documents by fairseq-train with graphs."""
LARGE, RATE, MEMORY_RATIO, SECOND_START_SECONDS = 256, 0.36, 1.15, 15.0
"""Documents, of which a step with graphs reaches this fraction of the data sheet; and what graphs may cost."""
GRAPHS = (
    *({"model": model, "variant": "eager"} for model in ("MAE-LM", "RoBERTa")),
    *({"model": model, "variant": "compiled", "rows": LARGE} for model in ("MAE-LM", "RoBERTa")),
    {"model": "6 x 384", "variant": "eager", "rows": 22},  # as many tokens as in the main-sentence experiment
)
"""Arguments of the stage graphs."""
VARIANTS = (
    *((model, "compiled, code chosen by measurements", None) for model in ("MAE-LM", "RoBERTa")),
    *(("RoBERTa", f"compiled, {name}", None) for name in ("dropout of torch", "separate casts")),
    ("3ML", "eager", None),
    ("3ML", "compiled", None),
    *((model, "compiled", rows) for model in ("MAE-LM", "RoBERTa") for rows in (128, 256)),
)
"""Model, form of compilation, and number of documents."""


class Row(NamedTuple):
    """A measurement: function of a module of :func:`functions`, its arguments, and its time limit."""

    function: str
    arguments: dict
    seconds: float = 60
    is_cold: bool = False
    """Whether it compiles with caches of its own, which are empty."""
    is_alone: bool = True
    """Whether no other one runs at the same time, as it is timed, or needs what earlier ones wrote."""

    @property
    def title(self) -> str:
        """The function and its arguments, of paths the names of the files."""
        return ", ".join([self.function, *(Path(str(value)).stem for value in self.arguments.values())])


def functions() -> dict[str, Callable[..., dict]]:
    """Return the functions of measurements, by name."""
    from benchmark import gpu_graphs, gpu_rows, gpu_trainer

    return {**gpu_rows.ROWS, **gpu_graphs.ROWS, **gpu_trainer.ROWS}


def stages(device: str, work: Path) -> dict[str, list[Row]]:
    """Return the measurements of each stage, in their order; a rehearsal has fewer."""
    on_gpu = device == "cuda"
    killed, once, again, eager, eager_again = _states(work)
    return {
        "steps": [
            Row("step", {"model": model, "variant": variant}, 100, "compiled" in variant)
            for model in ("MAE-LM", "RoBERTa")[: 2 if on_gpu else 1]
            for variant in ("eager", "compiled")
        ],
        "graphs": [Row("graphed", arguments, 100) for arguments in (GRAPHS if on_gpu else GRAPHS[:1])],
        "trainer": [
            *(
                Row("trained", {"model": model, "variant": variant}, 90)
                for variant in ("graphs", "eager")
                for model in ("MAE-LM", "RoBERTa")[: 2 if on_gpu else 1]
            ),
            *(
                Row("resumed", {"model": "MAE-LM", "variant": variant}, 150, True)
                for variant in ("compiled graphs",)[: 1 if on_gpu else 0]
            ),
            Row("resumed", {"model": "MAE-LM", "variant": "graphs"}, 120, True, is_alone=False),
            Row("ranks", {"model": "MAE-LM"}, 120, is_alone=False),
            Row("one_rank", {"model": "MAE-LM"}, is_alone=False),
        ],
        "checks": [row._replace(is_alone=False) for row in _checks(device, work)],
        "resume": [
            Row("train", {"path": killed, "updates": 4}, 90, True),
            *(
                Row("compare", {"one": one, "other": other})
                for one, other in ((killed, once), (again, once), (eager_again, eager))
            ),
        ],
        "models": [
            Row("at_once", {"models": number, "graphs": graphs}, 90)
            for number in (1, 12 if on_gpu else 2)
            for graphs in ("with graphs", "without graphs")
        ],
        "variants": [
            Row("step", {"model": model, "variant": variant, "rows": rows}, 100, "compiled," in variant)
            for model, variant, rows in (VARIANTS if on_gpu else ())
        ],
    }


def _states(work: Path) -> list[str]:
    """Return the files of the states that the stages checks and resume compare."""
    return [str(work / f"{name}.pt") for name in ("killed", "once", "again", "eager", "eager-again")]


def _checks(device: str, work: Path) -> list[Row]:
    on_gpu = device == "cuda"
    killed, once, again, eager, eager_again = _states(work)
    return [
        *(
            Row("operator_difference", {"dtype": name})
            for name in (("float16", "bfloat16") if on_gpu else ("float32",))
        ),
        Row("compiled_difference", {"model": "MAE-LM"}, 120),
        *(Row("repeated", {"model": "MAE-LM", "variant": name}, 120) for name in ("eager", "compiled")),
        Row("ragged", {"model": "MAE-LM", "batches": 20 if on_gpu else 3}, 120, True),
        # A rehearsal does not kill its own process: the first run ends there.
        Row("train", {"path": killed, "updates": 2, "is_killed": on_gpu}, 120, True),
        *(Row("train", {"path": path, "updates": 4}, 120, True) for path in (once, again)),
        *(Row("train", {"path": path, "updates": 4, "variant": "eager"}) for path in (eager, eager_again)),
    ]


def decisions(rows: dict[str, dict[str, dict]]) -> dict[str, str]:
    """Apply the rules to what was measured."""
    found = {}
    for title, row in rows.get("checks", {}).items():
        if "difference" in row and not row["difference"] <= row["tolerance"]:
            found[title] = "beyond tolerance: compiled layers are wrong"
        if row.get("recompilations"):
            found[title] = f"{row['recompilations']} recompilations after the warm-up: not the default"
        if row.get("unequal_gradients"):
            found[title] = f"not the default: gradients differ when repeated: {', '.join(row['unequal_gradients'])}"
    for title, row in rows.get("steps", {}).items():
        if "step_ms" in row and ", compiled" in title:
            found[title] = "; ".join(_findings(title, row)) or "passes"
    for title, row in {**rows.get("graphs", {}), **rows.get("trainer", {})}.items():
        is_reference = title.startswith("trained") and "graphs" not in title
        if "error" not in row and not is_reference:
            found[title] = "; ".join(_problems_of_graphs(title, row)) or "passes"
    for model in TRAINER_MS:
        title = f"trained, {model}, graphs"
        kernels = rows.get("graphs", {}).get(f"graphed, {model}, eager", {}).get("kernel_ms")
        if title in found and kernels is not None:
            found[title] += f" (kernels of a step: {kernels:.1f} ms)"
    unequal = [title for title, row in rows.get("resume", {}).items() if row.get("unequal")]
    if "compare, killed, once" in unequal:
        others = [title for title in unequal if "killed" not in title]
        found["resume"] = (
            f"differs, {'as do ' + ', '.join(others) if others else 'unlike two equal runs'}: not the default"
        )
    return found


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


def _problems_of_graphs(title: str, row: dict) -> Iterator[str]:
    """Yield why graphs, of which this was measured, do not become the default."""
    if row.get("unequal"):
        yield f"{row['unequal']} tensors differ in a bit"
    if not row.get("dropout_changes", True):
        yield "dropout does not follow the seed"
    if "difference" in row and not row["difference"] <= row["tolerance"]:
        yield f"losses differ by {row['difference']:.3f}"
    if row.get("memory") and row["memory"] > MEMORY_RATIO * row["ungraphed_memory"]:
        yield f"{row['memory'] / row['ungraphed_memory']:.2f} times the memory, above {MEMORY_RATIO}"
    if row.get("mfu") and title.endswith(f", {LARGE}") and row["mfu"] < RATE:
        yield f"{row['mfu']:.1%} of the data sheet, below {RATE:.0%}"
    if "second_start_s" in row and row["second_start_s"] >= SECOND_START_SECONDS:
        yield f"second start takes {row['second_start_s']:.0f} s"
    if "update_ms" in row:
        bar = next(bar for model, bar in TRAINER_MS.items() if model in title)
        if row["update_ms"] > bar:
            yield f"{row['update_ms']:.1f} ms per update, above {bar:.0f}"


def measure(row: Row, device: str, end: float) -> dict:
    """Run a measurement, on a GPU in a process of its own, and return its values or its error."""
    began = time.monotonic()
    seconds = min(row.seconds, end - began)
    if seconds < 5:
        return {"error": "no time left"}
    values = _in_a_process(row, device, seconds) if device == "cuda" else _values(row, device)
    return values | {"took_s": round(time.monotonic() - began, 2)}


def _values(row: Row, device: str) -> dict:
    try:
        return functions()[row.function](device, **row.arguments)
    except Exception as problem:  # the other measurements are still wanted
        return {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[-400:]}"}


def _in_a_process(row: Row, device: str, seconds: float) -> dict:
    context = _server_of_processes()
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as caches:
        process = context.Process(target=_send, args=(row, device, caches if row.is_cold else None, sender))
        process.start()
        sender.close()
        process.join(seconds)
        ended = process.exitcode
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the trainings that it started
        process.join()
    try:
        return receiver.recv()
    except EOFError:
        if ended == -signal.SIGKILL and row.arguments.get("is_killed"):
            return {"killed": True}
        return {"error": f"takes more than {seconds:.0f} s" if ended is None else f"ended with exit code {ended}"}


@functools.cache
def _server_of_processes() -> ForkServerContext:
    """Return what forks processes from one that has imported torch, and has not looked for devices."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.gpu_rows", "benchmark.gpu_graphs", "benchmark.gpu_trainer"])
    return context


def _send(row: Row, device: str, caches: str | None, sender: Connection) -> None:
    os.setsid()
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    if caches:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": caches}
    sender.send(_values(row, device))


def _measured(rows: list[Row], device: str, end: float) -> Iterator[tuple[Row, dict]]:
    """Yield measurements and their values: on a GPU, neighbours that need not be alone run side by side."""
    for is_alone, group in itertools.groupby(rows, lambda row: row.is_alone or device == "cpu"):
        group = list(group)
        with ThreadPoolExecutor() as pool:
            measured = (map if is_alone else pool.map)(lambda row: measure(row, device, end), group)
            yield from zip(group, measured, strict=True)


@dataclass(frozen=True)
class GpuOptions(Options):
    """Options of the programme.

    Attributes:
        stage: a stage, or all.
        out: directory for gpu.json and the states of the resumed training.
        device: cpu rehearses the programme at a tiny size.
    """

    stage: Annotated[
        Literal["all", "steps", "graphs", "trainer", "checks", "resume", "models", "variants"],
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
    limits = options.device, began + LIMIT_SECONDS
    for stage, rows in stages(options.device, options.out).items():
        is_wanted = options.stage in ("all", stage) or (options.stage, stage) == ("resume", "checks")  # trains for it
        for row, values in _measured(rows if is_wanted else [], *limits):
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
