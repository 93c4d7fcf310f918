"""Time of each operator of a function."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity


def operator_seconds(function: Callable[[], object], on_gpu: bool = False) -> dict[str, float]:
    """Call a function under the profiler; return the seconds of each operator, its callees excluded.

    They are seconds of the GPU's kernels, or of one thread of the CPU.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        function()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU, the kernels are events, too; their time is that of the operators that launch them.
    operators = [event for event in profile.key_averages() if event.device_type == DeviceType.CPU]
    return {event.key: getattr(event, own) / 1e6 for event in operators if getattr(event, own)}
