"""Settings of speed and memory that training promises, in processes that users' commands start."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.measure_resources import Training
from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.utils.allocator import CAPACITIES
from tests.support import ROOT
from tests.support.training import RECIPE

PROBE = ROOT / "tests" / "support" / "probe"
UPDATES = 2
FAST = ["--autocast", "bf16", "--optimizer", "fused_adamw", "--checkpoint-activations"]
SHORT = ["--max-update", UPDATES, "--disable-validation", "--no-save", "--num-workers", 0]


@pytest.fixture(autouse=True)
def nothing_exported(monkeypatch):
    """Remove the limits that a training in this process has left in the environment."""
    for name in CAPACITIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def probed(run_cli, tmp_path) -> Callable[..., list[dict]]:
    """Return ``probed(command, **env)``, which runs a command and returns what was found in each training process."""

    def run(command: list, **env: str) -> list[dict]:
        found = tmp_path / "probe"
        found.mkdir()
        path = os.pathsep.join([str(PROBE), str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = run_cli(command, cwd=tmp_path, env={"PYTHONPATH": path, "PROBE": str(found), **env})
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(file.read_text()) for file in found.iterdir()]

    return run


def fairseq_train(data: Path) -> list:
    """Return the command of fairseq-train, with two layers in the encoder and two in the decoder."""
    recipe = [*RECIPE, "--arch", "mae_lm_tiny", "--user-dir", PACKAGE]
    return ["fairseq-train", data, *recipe, *FAST, *SHORT]


def hydra_train(data: Path) -> list:
    """Return the command of fairseq-hydra-train, which loads this package after it has called ``call_main``."""
    recipe = f"""
    common: {{user_dir: {PACKAGE}, cpu: true}}
    task: {{_name: masked_autoencoder_lm, data: {data}, tokens_per_sample: 32}}
    model: {{_name: mae_lm_tiny, encoder_layers: 2, decoder_layers: 2, encoder_embed_dim: 16, autocast: bf16,
            checkpoint_activations: true}}
    criterion: masked_autoencoder_lm
    dataset: {{batch_size: 8, num_workers: 0, disable_validation: true}}
    checkpoint: {{no_save: true}}
    optimization: {{max_update: {UPDATES}, lr: [0.001]}}
    optimizer: {{_name: fused_adamw}}
    lr_scheduler: {{_name: fixed}}
    """
    (data.parent / "recipe.yaml").write_text(recipe)
    return ["fairseq-hydra-train", "--config-dir", data.parent, "--config-name", "recipe"]


@pytest.mark.parametrize(
    ("command", "exported"),
    [(fairseq_train, {}), (hydra_train, {"LRU_CACHE_CAPACITY": "7"})],
    ids=["fairseq-train", "fairseq-hydra-train, a limit is exported"],
)
def test_promises_hold_in_the_users_commands(probed, data_bin, command, exported):
    [found] = probed(command(data_bin), **exported)
    # oneDNN and torch read the limits with the first primitive.
    assert found["limits"] == dict.fromkeys(CAPACITIES, "64") | exported
    assert found["kept_fraction"] > 0.9  # the system takes back either the whole block or nothing of it
    assert found["optimizer"] == {"name": "AdamW", "fused": True}
    assert found["updates"] == UPDATES
    assert found["dtypes"]["Linear"] == "torch.bfloat16"
    # Two layers in the encoder and two in the decoder; each is computed again in the backward pass.
    assert found["forwards"]["TransformerLayer"] == 2 * 4 * UPDATES


@pytest.mark.slow  # compiles C++ for more than a minute
def test_compile_compiles(run_cli, data_bin, tmp_path):
    command = ["fairseq-train", data_bin, *RECIPE, "--arch", "mae_lm_roberta_tiny", "--user-dir", PACKAGE, *SHORT]
    command += ["--encoder-layers", 1, "--compile"]
    done = run_cli(command, cwd=tmp_path, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")})
    assert done.returncode == 0, done.stderr
    assert "num_updates=2" in done.stdout + done.stderr
    assert list((tmp_path / "compiled").rglob("*.so"))


@pytest.fixture(scope="module")
def ragged_data(tmp_path_factory) -> Path:
    """Make a data-bin of random tokens in documents of 8 to 125 tokens, so that every batch has another shape."""
    directory = tmp_path_factory.mktemp("ragged")
    generator = np.random.default_rng(0)
    (directory / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(1000)))
    for split, documents in (("train", 4000), ("valid", 20)):
        lengths = np.stack([generator.integers(9, 127, documents), np.ones(documents, int)], 1).ravel()
        tokens = generator.integers(4, 1004, lengths.sum())
        tokens[lengths.cumsum() - 1] = 2  # </s>; alone, it separates documents
        with DataBinWriter(directory / split, 1004) as writer:
            writer.write(tokens, lengths)
    return directory


@pytest.mark.slow
def test_memory_stays_flat(ragged_data, tmp_path):
    """Without the limits, primitives of earlier shapes fill memory: faster in bfloat16, where the CPU has it."""
    shape = ["--batch-size", 32, "--tokens-per-sample", 128, "--encoder-embed-dim", 64, "--encoder-layers", 1]
    options = [*shape, "--decoder-layers", 1, "--cpu", "--no-save", "--disable-validation", "--update-freq", 1]
    options += ["--max-update", 96, "--log-interval", 8]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        options += ["--autocast", "bf16"]
    command = ["fairseq_cli.train", ragged_data, *RECIPE[: RECIPE.index("--batch-size")], "--arch", "mae_lm_tiny"]
    command += ["--user-dir", PACKAGE, "--sample-break-mode", "complete_doc", "--log-format", "simple"]
    training = Training([sys.executable, "-m", *command, *options], tmp_path / "log", {"OMP_NUM_THREADS": "1"})
    try:
        while not training.updates or training.updates[-1] < 96:
            training.advance()
    finally:
        training.kill()
    # The first 8 updates allocate what each needs. Until the last one, 32 to 35 MB follow; without the limits, 170 MB
    # (float32, torch 2.13).
    assert training.bytes[-1] - training.bytes[0] < 110e6
