"""Speed of the data pipeline alone, against what a training step takes on a GPU."""

import math
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..analysis.flops import TRAINING, Sample, forward_flops
from ..core.config import MaskedAutoencoderConfig

ROWS = 32
"""Samples of a batch."""


class GPUDemand(NamedTuple):
    """What a GPU computes."""

    flops_per_second: float

    def samples_per_second(self, length: int, masked: int, vocab_size: int) -> float:
        """Full samples of MAE-LM base that it trains on."""
        sample = Sample(length, length - masked, masked)
        step = TRAINING * forward_flops(MaskedAutoencoderConfig(), vocab_size, [sample]).total
        return self.flops_per_second / step


def measure_pipeline(data_bin: Path, length: int, batches: int, demand: GPUDemand) -> dict[str, float]:
    """Time batches as a data worker makes them, after one that warms up.

    Args:
        data_bin: a data directory.
        length: tokens a sample.
        batches: how many batches of :data:`ROWS` samples.
        demand: of the GPU to feed.

    Returns:
        samples per second of one worker and of the GPU, the workers that it takes, and the spread of the times.
    """
    from omegaconf import OmegaConf

    from ..tasks.masked_autoencoder_lm import MaskedAutoencoderLMConfig, MaskedAutoencoderLMTask

    cfg = MaskedAutoencoderLMConfig(data=str(data_bin), tokens_per_sample=length, seed=1)
    task = MaskedAutoencoderLMTask.setup_task(OmegaConf.structured(cfg))
    task.load_dataset("train")
    dataset = task.dataset("train")
    order = dataset.ordered_indices()[::-1]  # the longest samples first
    seconds = []
    for number in range(batches + 1):
        start = time.perf_counter()
        dataset.collater([dataset[order[(number * ROWS + row) % len(order)]] for row in range(ROWS)])
        seconds.append(time.perf_counter() - start)
    seconds = seconds[1:]
    made = ROWS / median(seconds)
    taken = demand.samples_per_second(length, round(cfg.mask_prob * length), len(task.dictionary))
    return {
        "samples_per_second_of_a_worker": made,
        "batches_per_second_of_a_worker": made / ROWS,
        "spread": (max(seconds) - min(seconds)) / median(seconds),
        "samples_per_second_of_the_gpu": taken,
        "workers_needed": math.ceil(taken / made),
    }
