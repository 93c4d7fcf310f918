"""Stage 0: versions, the doctor's report, rates of matrix products, and the shapes of attention in pretraining."""

import shutil
import subprocess
from functools import partial
from pathlib import Path

import torch

from benchmark.day_one.attention import CASES, WIDTHS, measure_attention
from benchmark.day_one.measures import PRODUCTS, matrix_rate
from benchmark.day_one.scale import Scale
from mae_lm_fairseq.doctor import run_checks


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements."""
    products = [(f"matrix product, {name}", partial(_rate, scale, name)) for name in PRODUCTS]
    shapes = [
        (f"attention, width {width}, {case.name}", partial(measure_attention, scale, width, case))
        for case in CASES
        if scale.on_gpu or case.cudnn
        for width in WIDTHS
    ]
    return [("device", partial(_device, scale)), ("doctor", _doctor), *products, *shapes]


def _device(scale: Scale) -> dict:
    """Return what the driver and torch say about the GPU.

    Raises:
        RuntimeError: if torch does not see a GPU.
    """
    described = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        described["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    if not scale.on_gpu:
        return described
    if not torch.cuda.is_available():
        raise RuntimeError("torch does not see a GPU")
    properties = torch.cuda.get_device_properties(0)
    return described | {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "nccl": torch.cuda.nccl.version(),
    }


def _doctor() -> dict:
    return {"findings": [finding._asdict() for finding in run_checks()]}


def _rate(scale: Scale, name: str) -> dict:
    return {"tflops": matrix_rate(scale, name) / 1e12}
