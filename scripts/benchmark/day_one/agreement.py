"""Stage 1: losses and gradients in every precision against float32, and the tests that need a GPU."""

import os
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from benchmark.day_one.corpus import write_data_bin
from benchmark.day_one.measures import Model
from benchmark.day_one.scale import FP32, Scale
from benchmark.day_one.stages import ROOT, environment
from benchmark.day_one.training import fp32_arguments
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.models.mae_lm import Autocast

LOSS_SCALE = 4
"""As ``--fp16-init-scale`` in the recipe."""
PRECISIONS = {
    "fp32, sdpa": (torch.float32, AttentionBackend.sdpa, Autocast.none),
    "autocast bf16": (torch.float32, AttentionBackend.sdpa, Autocast.bf16),
    "bf16": (torch.bfloat16, AttentionBackend.sdpa, Autocast.none),
    "fp16": (torch.float16, AttentionBackend.sdpa, Autocast.none),
}
"""Type of the weights, attention, and autocast."""
TESTS_AT_ONCE = min(8, os.cpu_count() or 1)
"""Processes of pytest on a GPU, where each has a context of 0.5 GB."""
MARKER = re.compile(r"^(@pytest|pytestmark =|.* marks=)\W*(pytest\.)?mark\.gpu", re.MULTILINE)


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements."""
    agreement = Agreement(scale, work)
    compared = [(f"gradients, {name}", partial(agreement.compare, name)) for name in PRECISIONS]
    return compared + [(f"pytest {path.name}", partial(_pytest, scale, path)) for path in gpu_tests()]


class Agreement:
    """A batch of the preset, with its loss and gradients in float32 with eager attention and without dropout."""

    def __init__(self, scale: Scale, work: Path):
        data = write_data_bin(work / "data-bin", scale.vocabulary, scale.tokens // 10)
        shape = ("--tokens-per-sample", str(scale.length), "--batch-size", str(scale.rows), "--update-freq", "1", FP32)
        self.training = Model(scale, fp32_arguments(scale, scale.preset, data, work / "unused", shape))
        self.training.model.eval()
        self.weights = {name: weight.clone() for name, weight in self.training.model.state_dict().items()}
        self.sample = self.training.batch()
        self.expected = self.gradients(torch.float32, AttentionBackend.eager, Autocast.none)

    def gradients(
        self, dtype: torch.dtype, backend: AttentionBackend, autocast: Autocast
    ) -> tuple[float, dict[str, Tensor]]:
        """Return the loss in nats per predicted token, and its gradients in float32."""
        model = self.training.model.float()
        model.load_state_dict(self.weights)
        model.to(dtype)
        model.autocast = autocast
        model.resolve_backend(self.training.device)
        for stack in model.autoencoder.stacks():
            stack.attention_backend = backend
        model.zero_grad()
        loss, number, _ = self.training.criterion(model, self.sample)
        (loss * LOSS_SCALE).backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        scale = LOSS_SCALE * number
        return float(loss) / number, {name: gradient.float() / scale for name, gradient in gradients.items()}

    def compare(self, name: str) -> dict:
        """Return the differences of a precision from float32, relative to the float32 values."""
        loss, found = self.gradients(*PRECISIONS[name])
        expected_loss, expected = self.expected
        differences = {name: _norm([found[name] - expected[name]]) / _norm([expected[name]]) for name in expected}
        worst = max(differences, key=differences.get)
        whole = [found[name] - expected[name] for name in expected]
        return {
            "loss": loss,
            "loss_difference": loss / expected_loss - 1,
            "gradient_difference": _norm(whole) / _norm(list(expected.values())),
            "worst_parameter": worst,
            "worst_difference": differences[worst],
        }


def _norm(tensors: list[Tensor]) -> float:
    return sum(float(tensor.square().sum()) for tensor in tensors) ** 0.5


def gpu_tests() -> list[Path]:
    """Return the test modules with tests marked gpu: collecting all others would need more packages."""
    found = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARKER.search(path.read_text("utf-8"))]
    return sorted(found, key=lambda path: "end_to_end" in path.parts)


def _pytest(scale: Scale, path: Path) -> dict:
    """Run the tests of a module that need a GPU, several at a time if pytest-xdist is there; on a CPU their rehearsal.

    Raises:
        RuntimeError: if a test failed.
    """
    options = [] if scale.on_gpu else ["--gpu-tests-on", "cpu"]
    if find_spec("xdist"):
        options += ["-n", str(TESTS_AT_ONCE if scale.on_gpu else 0), "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *options]
    done = subprocess.run(
        [*command, str(path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout[-4000:], flush=True)
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    failures = re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    if done.returncode:
        raise RuntimeError(f"{counts}, {os.linesep.join(failures)[:400] or done.stdout[-300:]}")
    return counts
