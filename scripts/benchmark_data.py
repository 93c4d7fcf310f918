#!/usr/bin/env python
"""Measure how many batches a data worker makes, and compare with what a GPU consumes.

    scripts/benchmark_data.py DATA_BIN [--tokens-per-sample N] [--batches N] [--peak-tflops F] [--mfu F] [--json FILE]

The sequences are read and masked as in fairseq-train, in one process. The GPU is assumed to train MAE-LM base at the
given fraction of its peak rate.
"""

import argparse
from pathlib import Path

from benchmark.data_pipeline import measure_pipeline
from mae_lm_fairseq.utils.arguments import output_file, positive
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.logging import configure_logging
from mae_lm_fairseq.utils.versions import provenance


def main():
    """Measure, and print one result per line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_bin", type=Path, metavar="DATA_BIN", help="data-bin made by mae-lm prepare")
    parser.add_argument(
        "--tokens-per-sample", type=int, default=512, metavar="N", help="sequence length (default: 512)"
    )
    parser.add_argument(
        "--batches", type=positive, default=50, metavar="N", help="batches of 32 sequences (default: 50)"
    )
    parser.add_argument(
        "--peak-tflops", type=float, default=989, metavar="F", help="peak of the GPU (default: an H100's, bf16)"
    )
    parser.add_argument("--mfu", type=float, default=0.45, metavar="F", help="fraction of the peak (default: 0.45)")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="JSON file for the results")
    arguments = parser.parse_args()
    configure_logging()
    gpu_flops = arguments.peak_tflops * 1e12 * arguments.mfu
    figures = measure_pipeline(arguments.data_bin, arguments.tokens_per_sample, arguments.batches, gpu_flops)
    for name, value in figures.items():
        print(f"{name:40} {value:,.2f}")
    if arguments.json:
        write_json(arguments.json, provenance() | figures)


if __name__ == "__main__":
    with errors_end_the_program():
        main()
