"""Rate of a device in training by formula, and its fraction of the device's peak (MFU)."""

from collections.abc import Sequence
from typing import Any

import torch
from fairseq.distributed.utils import get_data_parallel_world_size
from fairseq.logging import metrics

from mae_lm_fairseq.cost.planned_run import DEVICES, kind_of_gpu
from mae_lm_fairseq.models.architectures import Autocast


def peak_flops(model) -> float | None:
    """Return the peak FLOP/s of the model's GPU in half precision; None for other devices and for float32 products.

    The peak of float32 depends on whether torch uses TF32.
    """
    weight = next(model.parameters())
    is_half = weight.dtype != torch.float32 or getattr(model, "autocast", None) is Autocast.bf16
    kind = kind_of_gpu(torch.cuda.get_device_properties(weight.device)) if weight.is_cuda and is_half else None
    return None if kind is None else DEVICES[kind].half


def log_throughput(logging_outputs: Sequence[dict[str, Any]], peak: float | None) -> None:
    """Log ``tflops`` and ``mfu`` of batches that have ``flops``.

    ``tflops`` is the FLOPs of the batches, without padding and recomputed activations, in 1e12 per second of each
    device, over the same time as fairseq's ``wps``. ``mfu`` is its fraction of ``peak``, in FLOP/s, if that is known.
    """
    if not any("flops" in log for log in logging_outputs):
        return
    flops = sum(log["flops"] for log in logging_outputs)  # of several processes a tensor, which is not read here
    metrics.log_speed("tflops", flops / 1e12 / get_data_parallel_world_size(), priority=95, round=4)
    if peak is not None:
        metrics.log_derived("mfu", lambda meters: round(float(meters["tflops"].avg) * 1e12 / peak, 4), priority=96)
