"""Measures that several stages need: rates of the device, models in this process, FLOPs of a text."""

import random
import timeit
from statistics import median

import torch

from benchmark.day_one.scale import Scale
from mae_lm_fairseq.cost.flops import TRAINING, Sample, forward_flops
from mae_lm_fairseq.cost.planned_run import Run, kind_of_gpu

PRODUCTS = {
    "fp32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "fp16": (torch.float16, "highest"),
    "bf16": (torch.bfloat16, "highest"),
}
"""Type of the matrices, and the precision of float32 products: high is TF32."""


def matrix_rate(scale: Scale, name: str) -> float:
    """Return the FLOP/s of a product of square matrices."""
    dtype, precision = PRODUCTS[name]
    left, right = torch.randn(2, scale.matrix, scale.matrix, device=scale.device).to(dtype)

    def multiply() -> None:
        left @ right
        synchronize(scale)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        multiply()
        return 2 * scale.matrix**3 / median(timeit.repeat(multiply, number=1, repeat=5))
    finally:
        torch.set_float32_matmul_precision(before)


def data_sheet_rate(scale: Scale, precision: str) -> float | None:
    """Return the FLOP/s in the GPU's data sheet; None for a CPU and for GPUs that the planner does not know."""
    kind = kind_of_gpu(torch.cuda.get_device_properties(0)) if scale.on_gpu else None
    return kind and Run(preset=scale.preset, device_kind=kind, precision=precision).peak


def synchronize(scale: Scale) -> None:
    """Wait until the device has done its work."""
    if scale.on_gpu:
        torch.cuda.synchronize()


class Model:
    """A model, its criterion and the batches of a data-bin, in this process."""

    def __init__(self, scale: Scale, arguments: list[str]):
        from fairseq import tasks

        from mae_lm_fairseq.training.pretrain import parse_configuration

        self.device = torch.device(scale.device)
        self.cfg = parse_configuration(arguments)
        self.task = tasks.setup_task(self.cfg.task)
        self.task.load_dataset("train")
        torch.manual_seed(1)
        self.model = self.task.build_model(self.cfg.model).to(self.device)
        self.criterion = self.task.build_criterion(self.cfg.criterion)

    def batch(self) -> dict:
        """Return a batch of usual length on the device."""
        from fairseq import utils

        iterator = self.task.get_batch_iterator(
            self.task.dataset("train"),
            max_sentences=self.cfg.dataset.batch_size,
            max_positions=self.task.max_positions(),
        )
        batches = list(iterator.frozen_batches)
        chosen = random.Random(1).choice([batch for batch in batches if len(batch) == max(map(len, batches))])
        dataset = self.task.dataset("train")
        batch = dataset.collater([dataset[index] for index in chosen])
        return utils.move_to_cuda(batch) if self.device.type == "cuda" else batch

    def flops_per_token(self) -> float:
        """Return the training FLOPs per token of the text, from the lengths of its sequences."""
        from mae_lm_fairseq.models.architectures import core_config

        dataset = self.task.dataset("train")
        sizes = [int(dataset.size(index)) for index in range(len(dataset))]
        masked = [max(1, round(self.cfg.task.mask_prob * size)) for size in sizes]
        samples = [Sample(size, size - hidden, hidden) for size, hidden in zip(sizes, masked, strict=True)]
        total = forward_flops(core_config(self.cfg.model), len(self.task.dictionary), samples).total
        return TRAINING * total / sum(sizes)
