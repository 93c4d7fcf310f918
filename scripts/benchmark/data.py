"""Measure how many batches a data worker makes, and compare with what a GPU consumes.

The sequences are read and masked as in fairseq-train, in one process. The GPU is assumed to train MAE-LM base at the
given fraction of its peak rate.

Example:
    scripts/benchmark.py data data-bin
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops
from mae_lm_fairseq.utils.command_line import Argument, Count, Fraction, Options, OutputFile
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance

ROWS = 32
"""Sequences per batch."""


@dataclass(frozen=True)
class BenchmarkOptions(Options):
    """Options of the benchmark.

    Attributes:
        data_bin: data-bin made by mae-lm prepare.
        tokens_per_sample: sequence length.
        batches: number of batches of 32 sequences.
        peak_tflops: peak of the GPU (default: 989, an H100's in bf16).
        mfu: fraction of the peak.
        json: JSON file for the results.
    """

    data_bin: Annotated[Path, Argument("DATA_BIN", positional=True)]
    tokens_per_sample: Count = 512
    batches: Count = 50
    peak_tflops: Annotated[float, Argument("F", above=0)] = 989
    mfu: Fraction = 0.45
    json: OutputFile | None = None


def main(options: BenchmarkOptions) -> None:
    """Measure, and print one result per line."""
    gpu_flops = options.peak_tflops * 1e12 * options.mfu
    figures = measure_pipeline(options.data_bin, options.tokens_per_sample, options.batches, gpu_flops)
    for name, value in figures.items():
        print(f"{name:40} {value:,.2f}")
    if options.json:
        write_json(options.json, provenance() | figures)


def measure_pipeline(data_bin: Path, length: int, batches: int, gpu_flops: float) -> dict[str, float]:
    """Time the batches of a data worker, after one warm-up batch.

    Args:
        batches: number of batches of :data:`ROWS` sequences.
        gpu_flops: FLOP/s of the GPU to feed.

    Returns:
        Sequences per second of one worker and of a GPU that trains MAE-LM base, the number of workers needed, and the
        spread of the times.
    """
    from omegaconf import OmegaConf

    from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMTask
    from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig

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
    sample = Positions(length, length - masked, masked)
    step = TRAINING * forward_flops(MaskedAutoencoderConfig(), len(task.dictionary), [sample]).total
    taken = gpu_flops / step
    return {
        "samples_per_second_of_a_worker": made,
        "batches_per_second_of_a_worker": made / ROWS,
        "spread": (max(seconds) - min(seconds)) / median(seconds),
        "samples_per_second_of_the_gpu": taken,
        "workers_needed": math.ceil(taken / made),
    }
