"""Torch's fused attention at the shapes of pretraining: kernels, the time of the first call, and the usual time."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch.autograd import DeviceType

from benchmark.day_one.measures import synchronize
from benchmark.day_one.scale import Scale

WIDTHS = (435, 436, 440, 448, 512)
"""435 and 436 visible tokens are rows of 512 tokens with 15 % masked; the others are multiples of 8 and of 64."""
DROPOUT = 0.1
SHOWN = 4
"""Number of kernels in the results, by time."""


@dataclass(frozen=True)
class Case:
    """Bias of the attention, and whether cuDNN's kernel may be chosen."""

    bias: str
    cudnn: bool = True

    @property
    def name(self) -> str:
        return f"bias {self.bias}" + ("" if self.cudnn else ", without cuDNN")


CASES = (Case("trained"), Case("fixed"), Case("none"), Case("fixed", cudnn=False), Case("none", cudnn=False))


def measure_attention(scale: Scale, width: int, case: Case) -> dict:
    """Measure forward and backward pass of attention in bfloat16 with dropout, in rows of ``width`` tokens."""
    rows, heads, size = scale.attention
    shape = (rows, heads, width, size)
    q, k, v = (torch.randn(shape, device=scale.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    bias = None
    if case.bias != "none":
        bias = torch.randn(*shape[:2], width, width, device=scale.device, dtype=torch.bfloat16)
        bias.requires_grad_(case.bias == "trained")

    def call() -> float:
        synchronize(scale)
        start = time.perf_counter()
        F.scaled_dot_product_attention(q, k, v, bias, DROPOUT, scale=1.0).sum().backward()
        synchronize(scale)
        return time.perf_counter() - start

    with _cudnn(case.cudnn):
        first = call()
        seconds = [call() for _ in range(scale.repetitions)]
        kernels = _kernels(scale, call)
    return {
        "width": width,
        "bias": case.bias,
        "cudnn": case.cudnn,
        "first_ms": 1e3 * first,
        "median_ms": 1e3 * median(seconds),
        "kernels": kernels,
        "kernel": next((name for name in kernels if _is_attention(name)), "unfused"),
    }


@contextlib.contextmanager
def _cudnn(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(before and allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _is_attention(name: str) -> bool:
    return any(part in name.lower() for part in ("fmha", "flash", "cudnn", "attention", "sdpa"))


def _kernels(scale: Scale, call) -> list[str]:
    """Return the names of the kernels that take most time, or of the operators on a CPU."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(
        activities=[activity.CPU, activity.CUDA] if scale.on_gpu else [activity.CPU]
    ) as profile:
        call()
    device, own = (
        (DeviceType.CUDA, "self_device_time_total") if scale.on_gpu else (DeviceType.CPU, "self_cpu_time_total")
    )
    events = [event for event in profile.key_averages() if event.device_type == device]
    return [event.key for event in sorted(events, key=lambda event: -getattr(event, own))[:SHOWN]]
