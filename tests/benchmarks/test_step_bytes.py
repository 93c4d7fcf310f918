"""scripts/benchmark/step_bytes.py: bytes that a step moves on a GPU, counted on tensors without content."""

import runpy
import sys

import pytest
import torch
from torch import Tensor

from benchmark.step_bytes import ByteCounter, step_bytes
from mae_lm_fairseq.core import attention_backends
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT

BASE_LIMITS = {"sdpa": 60e9, "fused": 45e9}
"""Limits of mae_lm_base by backend, for 32 x 512 tokens; with a copy of the bias in every layer it moved 70 GB."""


def small_step() -> ByteCounter:
    # The longest row has 27 visible tokens, so that the rows of no bias are aligned as they are.
    return step_bytes(
        "mae_lm_tiny", rows=5, length=30, mask_prob=0.15, dtype=torch.float16, backend=AttentionBackend.sdpa
    )


def test_no_kernel_copies_the_bias(monkeypatch):
    calls = small_step().calls
    assert calls["_scaled_dot_product_efficient_attention"] == 6
    assert calls["constant_pad_nd"] == calls["slice_backward"] == 0
    monkeypatch.setattr(attention_backends, "_aligned", lambda bias, dtype: bias.to(dtype))
    assert small_step().calls["constant_pad_nd"] > 0  # the count finds such copies


def test_bytes_of_an_operator():
    counter = ByteCounter()
    with counter, torch.device("meta"):
        matrix, row = torch.empty(7, 9), torch.empty(1, 9).expand(7, 9)
        total: Tensor = matrix + row
        total.view(-1)
        total @ total.T
    assert dict(counter.moved) == {"add": 4 * (63 + 9 + 63)}


def test_base_stays_below_its_limit(tmp_path, monkeypatch):
    """The committed file is what the script writes today."""
    file = tmp_path / "bytes.json"
    script = ROOT / "scripts/benchmark/step_bytes.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--json", str(file)])
    runpy.run_path(str(script), run_name="__main__")
    step = read_json(file)["step"]
    for backend, limit in BASE_LIMITS.items():
        assert step["mae_lm_base"][backend]["bytes"] < limit
    assert step == read_json(ROOT / "scripts/results/step-bytes.json")["step"]


@pytest.mark.parametrize("option", [["--rows", "0"], ["--precision", "fp16"]])
def test_wrong_options(tmp_path, monkeypatch, capsys, option):
    script = ROOT / "scripts/benchmark/step_bytes.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--json", str(tmp_path / "bytes.json"), *option])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code
    assert option[0] in capsys.readouterr().err + str(ended.value.code)
