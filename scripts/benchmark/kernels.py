#!/usr/bin/env python3
"""Compile the kernels of attention and loss for GPUs, without one, and estimate their time.

Writes the registers, spilled bytes and shared memory that ptxas reports for each kernel, precision (fp32: TF32, as in
training) and architecture at the head size of base and large, and a roofline: the kernels' floating-point operations
and bytes for the batch of step_bytes.py (32 x 512 tokens, 15 % masked, base), divided by the data sheet's rates of an
H100. It needs the extra ``kernels``, and takes two minutes.

Example:
    scripts/benchmark/kernels.py --json kernels.json
"""

import contextlib
import hashlib
import io
import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mae_lm_fairseq.core.kernels import fused_attention, fused_loss
from mae_lm_fairseq.cost.planned_run import DEVICES
from mae_lm_fairseq.utils.command_line import Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities of A100, H100 and B200, times ten."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
KERNELS = (fused_attention._forward, fused_attention._backward_queries, fused_attention._backward_keys)
LOSS = fused_loss._cross_entropy
HEAD_SIZE = 64
BUCKETS = 32
DROPOUT = 0.1
INTEGERS = {"ends": "i32", "query_starts": "i32", "key_starts": "i32", "R": "i32"}
INTEGERS |= {"query_positions": "i64", "key_positions": "i64", "targets": "i64", "correct": "i1"}
SUMS = ("L", "D", "B", "dB", "losses")
"""Float32 arguments whatever the precision."""
H100 = DEVICES["h100"]
H100_BANDWIDTH = 3.35e12
"""Bytes per second: NVIDIA H100 datasheet (2023), SXM."""


def compiled(kernel: triton.JITFunction, precision: str, architecture: int) -> dict:
    """Compile a kernel, and return what ptxas reports."""
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    warps = 4
    constants = fused_attention._constants(torch.empty(1, 1, HEAD_SIZE, dtype=DTYPES[precision]), True, DROPOUT)
    if kernel is LOSS:
        warps = fused_loss.WARPS
        constants = {"GRADIENT": True, "BLOCK": fused_loss.BLOCK, "num_stages": fused_attention.STAGES}
    if kernel is fused_attention._backward_queries:
        constants |= {"RUNS": BUCKETS}
    stages = constants.pop("num_stages")
    types = {name: _type(name, precision, constants) for name in kernel.arg_names}
    # Pointers and strides are multiples of 16, as Triton finds at run time.
    aligned = [index for index, (name, kind) in enumerate(types.items()) if kind[0] == "*" or name.startswith("stride")]
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned}
    source = ASTSource(kernel, types, constexprs=constants, attrs=attributes)
    with contextlib.redirect_stdout(io.StringIO()) as log:  # triton prints the log of ptxas
        binary = triton.compile(
            source, target=GPUTarget("cuda", architecture, 32), options={"num_stages": stages, "num_warps": warps}
        )
    registers = re.search(r"Used (\d+) registers", log.getvalue())
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log.getvalue())
    return {
        "kernel": kernel.fn.__name__,
        "precision": precision,
        "architecture": f"sm_{architecture}",
        "registers": int(registers[1]),
        "spilled_bytes": sum(map(int, spilled.groups())),
        "shared_memory_bytes": binary.metadata.shared,
    }


def _type(name: str, precision: str, constants: dict) -> str:
    """Return Triton's type of an argument."""
    if name in constants:
        return "constexpr"
    if name in INTEGERS:
        return f"*{INTEGERS[name]}"
    if name in SUMS:
        return "*fp32"
    return f"*{precision}" if name.lstrip("d") in ("Q", "K", "V", "O", "X") else "i32"


def roofline(rows: int, queries: int, keys: int, heads: int) -> list[dict]:
    """Estimate each kernel's time on an H100 in float16, for rows of equal length.

    Products take two operations for each of their multiplications; every tensor is read or written once.
    """
    product = 2 * rows * heads * queries * keys * HEAD_SIZE
    q, k = (2 * rows * heads * number * HEAD_SIZE for number in (queries, keys))
    sums = 4 * rows * heads * queries
    # Scores and output; scores, dP, dQ and prefix sums; scores, dP, dV and dK. Sums: L, D, random numbers.
    prefix = fused_attention.SMALL_BLOCKS[1] / HEAD_SIZE
    work = (2, 2 * q + 2 * k + 2 * sums), (3 + prefix, 4 * q + 2 * k + 3 * sums), (4, 2 * q + 4 * k + 3 * sums)
    estimates = []
    for kernel, (products, moved) in zip(KERNELS, work, strict=True):
        seconds = max(products * product / H100.half, moved / H100_BANDWIDTH)
        estimates.append(
            {"kernel": kernel.fn.__name__, "flop": products * product, "bytes": moved, "microseconds": 1e6 * seconds}
        )
    return estimates


@dataclass(frozen=True)
class KernelOptions(Options):
    """Options of the compilation.

    Attributes:
        json: JSON file for the results.
    """

    json: OutputFile


def main(options: KernelOptions) -> None:
    """Compile, print what spills, and write the file."""
    torch.set_float32_matmul_precision("high")
    results = []
    for architecture in ARCHITECTURES:
        for precision in DTYPES:
            results += [compiled(kernel, precision, architecture) for kernel in (*KERNELS, LOSS)]
            spilled = [row["kernel"] for row in results[-len(KERNELS) - 1 :] if row["spilled_bytes"]]
            print(f"sm_{architecture}, {precision}: {', '.join(spilled) or 'nothing'} spills", flush=True)
    source = b"".join(Path(module.__file__).read_bytes() for module in (fused_attention, fused_loss))
    write_json(
        options.json,
        provenance()
        | {
            "triton": version("triton"),
            "source_sha256": hashlib.sha256(source).hexdigest(),
            "head_size": HEAD_SIZE,
            "compiled": results,
            "roofline_h100_estimate": {
                "encoder": roofline(32, 435, 435, 12),
                "decoder": roofline(32, 512, 512, 12),
                "last decoder layer": roofline(32, 77, 512, 12),
            },
        },
    )


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(KernelOptions, sys.argv[1:], __doc__, Path(__file__).name))
