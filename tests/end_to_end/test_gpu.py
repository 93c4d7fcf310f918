"""Training on a GPU, in every precision and with every attention backend."""

import math
import re

import pytest

from tests.support.training import RECIPE

pytestmark = pytest.mark.gpu

PRECISIONS = [[], ["--fp16"], ["--bf16"], ["--autocast", "bf16"], ["--memory-efficient-fp16"]]
OPTIONS = [
    *(["--attention-backend", "sdpa", *precision] for precision in PRECISIONS),
    ["--attention-backend", "eager", "--fp16"],
    ["--attention-backend", "flex", "--bf16", "--attention-dropout", 0],
    ["--checkpoint-activations", "--bf16"],
    ["--compile", "--bf16"],
    ["--optimizer", "fused_adamw", "--bf16"],
]


def losses(done):
    found = re.findall(r"\| train_inner \|.*?\bloss=([\d.]+)", done.stderr + done.stdout)
    assert done.returncode == 0, done.stderr
    assert found
    return [float(loss) for loss in found]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options)))
def test_first_updates_have_the_losses_of_a_cpu(fairseq_train, data_bin, options):
    recipe = [data_bin, *(word for word in RECIPE if word != "--cpu"), "--user-dir", "mae_lm_fairseq"]
    recipe += ["--arch", "mae_lm_tiny", "--max-update", 4, "--no-save"]
    on_cpu = losses(fairseq_train(*recipe, "--cpu"))
    on_gpu = losses(fairseq_train(*recipe, *options))
    assert len(on_gpu) == len(on_cpu) == 4
    # The masks are the same, dropout is not.
    assert all(math.isclose(gpu, cpu, rel_tol=0.05) for gpu, cpu in zip(on_gpu, on_cpu, strict=True))
