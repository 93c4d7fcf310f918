"""Throughput of the data pipeline, compared with a training step on a GPU."""

import math
import time
from pathlib import Path
from statistics import median

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Sample, forward_flops

ROWS = 32
"""Sequences per batch."""


def measure_pipeline(data_bin: Path, length: int, batches: int, gpu_flops: float) -> dict[str, float]:
    """Time the batches of a data worker, after one warm-up batch.

    Args:
        data_bin: the data-bin.
        length: tokens per sequence.
        batches: number of batches of :data:`ROWS` sequences.
        gpu_flops: FLOP/s of the GPU to feed.

    Returns:
        Sequences per second of one worker and of a GPU that trains MAE-LM base, the number of workers needed, and the
        spread of the times.
    """
    from omegaconf import OmegaConf

    from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMConfig, MaskedAutoencoderLMTask

    cfg = MaskedAutoencoderLMConfig(data=str(data_bin), tokens_per_sample=length, seed=1)
    task = MaskedAutoencoderLMTask.setup_task(OmegaConf.structured(cfg))
    task.load_dataset("train")
    dataset = task.dataset("train")
    order = dataset.ordered_indices()[::-1]  # the longest sequences first
    seconds = []
    for number in range(batches + 1):
        start = time.perf_counter()
        dataset.collater([dataset[order[(number * ROWS + row) % len(order)]] for row in range(ROWS)])
        seconds.append(time.perf_counter() - start)
    seconds = seconds[1:]
    made = ROWS / median(seconds)
    masked = round(cfg.mask_prob * length)
    sample = Sample(length, length - masked, masked)
    step = TRAINING * forward_flops(MaskedAutoencoderConfig(), len(task.dictionary), [sample]).total
    taken = gpu_flops / step
    return {
        "samples_per_second_of_a_worker": made,
        "batches_per_second_of_a_worker": made / ROWS,
        "spread": (max(seconds) - min(seconds)) / median(seconds),
        "samples_per_second_of_the_gpu": taken,
        "workers_needed": math.ceil(taken / made),
    }
