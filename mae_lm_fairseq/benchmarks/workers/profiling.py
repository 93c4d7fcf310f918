"""Time of each operator of a function."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity


def operator_seconds(function: Callable[[], object], on_gpu: bool = False) -> dict[str, float]:
    """Call a function under the profiler; return the seconds of each operator, its callees excluded.

    They are seconds of the GPU's kernels, or of one thread of the CPU.
    """
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profile:
        function()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return {event.key: getattr(event, own) / 1e6 for event in profile.key_averages() if getattr(event, own)}
