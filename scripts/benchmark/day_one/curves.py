"""Stage 5: loss curves beside one of a CPU, and the memory of large beside the cost planner's.

Run as a module, this trains the reference curves on a CPU and writes them: ``python -m benchmark.day_one.curves`` in
scripts/. The text is the same everywhere; there is no dropout, whose random numbers depend on the device.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmark.day_one.corpus import write_data_bin
from benchmark.day_one.scale import AUTOCAST, FP16, FP32, SCALES, Scale
from benchmark.day_one.stages import ROOT, environment
from benchmark.day_one.training import flags, train
from mae_lm_fairseq.utils.files import directory_sha256, read_json, write_json
from mae_lm_fairseq.utils.versions import provenance

COMMAND = "python -m benchmark.day_one.curves"
REFERENCE = ROOT / "scripts" / "results" / "gpu-day-one-curves.json"
UPDATES, INTERVAL, COMPARED = 300, 10, 5
"""Updates of a curve, updates between its points, and the number of last points whose mean is compared."""
VOCABULARY, TOKENS, LENGTH, ROWS = 2_000, 400_000, 128, 16
LARGE_UPDATES = 3


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements."""
    data = write_data_bin(work / "data-bin", VOCABULARY, TOKENS)
    precisions = {"fp32": (FP32,)}
    if scale.on_gpu:  # many CPUs multiply in bfloat16 a hundred times more slowly
        precisions |= {"autocast bf16": AUTOCAST, "fp16": FP16, "bf16": ("--bf16",)}
    curves = [
        (f"curve, {name}", partial(_compare, scale, data, work / name.replace(" ", "-"), options))
        for name, options in precisions.items()
    ]
    return [*curves, ("memory of large", partial(_memory, scale, work))]


def curve(scale: Scale, data: Path, work: Path, options: tuple[str, ...]) -> list[float]:
    """Train without dropout, and return the mean loss in bits of every :data:`INTERVAL` updates."""
    shape = {"batch-size": ROWS, "update-freq": 1, "tokens-per-sample": LENGTH, "dropout": 0, "attention-dropout": 0}
    shape |= {"max-update": UPDATES, "total-num-update": UPDATES, "warmup-updates": 20, "lr": 1e-3}
    losses = train(scale, scale.curve, data, work, (*flags(shape), "--no-save", *options)).values("loss")
    return [round(sum(losses[start : start + INTERVAL]) / INTERVAL, 4) for start in range(0, UPDATES, INTERVAL)]


def _compare(scale: Scale, data: Path, work: Path, options: tuple[str, ...]) -> dict:
    """Train, and return the differences from the curve of a CPU.

    Raises:
        RuntimeError: if the text differs from the reference's.
    """
    reference = read_json(REFERENCE)
    if reference["text"] != directory_sha256(data):
        raise RuntimeError("the text is not that of the reference curve")
    expected, losses = reference["curves"][scale.curve], curve(scale, data, work, options)
    differences = [found / wanted - 1 for found, wanted in zip(losses, expected, strict=True)]
    return {
        "first_difference": differences[0],
        "largest_difference": max(map(abs, differences)),
        "last_difference": sum(differences[-COMPARED:]) / COMPARED,
        "last_loss": losses[-1],
        "losses": losses,
        "reference": expected,
    }


def _memory(scale: Scale, work: Path) -> dict:
    """Train the large preset for a few updates, and return its memory beside the planner's."""
    data = write_data_bin(work / "large", scale.vocabulary, scale.tokens)
    shape = {"batch-size": scale.rows, "update-freq": 2, "tokens-per-sample": scale.length}
    options = flags(shape)
    full = ("--sample-break-mode", "none")  # as the planner assumes
    stop = ("--max-update", str(LARGE_UPDATES), "--no-save")
    training = train(scale, scale.large, data, work / "large-run", (*options, *full, *stop))
    precision = ["--precision", "fp16" if scale.on_gpu else "fp32", "--vocab-size", str(scale.vocabulary)]
    plan = [sys.executable, "-m", "mae_lm_fairseq", "plan", scale.large, "--devices", "1", "--json"]
    done = subprocess.run([*plan, *options, *precision], env=environment(), capture_output=True, text=True, check=True)
    planned = json.loads(done.stdout)["plans"][0]["memory"]["total"]
    measured = training.peak_gpu_memory()
    return {
        "planned_bytes": planned,
        "peak_gpu_bytes": measured,
        "peak_host_bytes": training.peak_resident,
        "measured_over_planned": measured and measured / planned,
    }


def write_reference() -> None:
    """Train the presets of both scales on a CPU in float32, and write their curves."""
    with tempfile.TemporaryDirectory() as work:
        data = write_data_bin(Path(work, "data-bin"), VOCABULARY, TOKENS)
        curves = {}
        for scale in SCALES.values():
            on_cpu = replace(SCALES["cpu"], curve=scale.curve)
            curves[scale.curve] = curve(on_cpu, data, Path(work, scale.curve), (FP32,))
        shape = {"updates": UPDATES, "interval": INTERVAL, "rows": ROWS, "length": LENGTH, "vocabulary": VOCABULARY}
        write_json(
            REFERENCE, {**provenance(), "command": COMMAND, **shape, "text": directory_sha256(data), "curves": curves}
        )


if __name__ == "__main__":
    write_reference()
