"""Registers and memory of the kernels compiled for GPUs, as scripts/benchmark/kernels.py recorded them."""

import hashlib

import pytest

from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT

KERNELS = [ROOT / "mae_lm_fairseq/core/kernels" / name for name in ("fused_attention.py", "fused_loss.py")]
RESULTS = read_json(ROOT / "scripts/results/kernels.json")


def test_compiled_kernels_are_those_of_today():
    source = hashlib.sha256(b"".join(path.read_bytes() for path in KERNELS)).hexdigest()
    assert RESULTS["source_sha256"] == source, "run scripts/benchmark/kernels.py"


def test_no_register_is_spilled():
    compiled = RESULTS["compiled"]
    assert {row["architecture"] for row in compiled} == {"sm_80", "sm_90", "sm_100"}
    assert len(compiled) == 3 * 3 * 4
    assert not [row for row in compiled if row["spilled_bytes"]]
    # Three programs fit into the 164 KiB of shared memory of an A100's multiprocessor (NVIDIA's A100 whitepaper).
    assert 3 * max(row["shared_memory_bytes"] for row in compiled) < 164 << 10


@pytest.mark.slow
def test_kernels_compile_today():
    pytest.importorskip("triton")
    from benchmark.kernels import compiled
    from mae_lm_fairseq.core.kernels import fused_attention

    resources = compiled(fused_attention._forward, "fp16", 90)
    assert resources["spilled_bytes"] == 0
