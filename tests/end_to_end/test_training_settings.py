"""Settings of speed and memory that training promises, in processes that users' commands start."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.utils.allocator import CAPACITIES
from tests.support import ROOT
from tests.support.training import RECIPE

PROBE = ROOT / "tests" / "support" / "probe"
UPDATES = 2
FAST = ["--autocast", "bf16", "--optimizer", "fused_adamw", "--checkpoint-activations"]
SHORT = ["--max-update", UPDATES, "--disable-validation", "--no-save", "--num-workers", 0]


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


def pretrain(data: Path) -> list:
    """Return the command of mae-lm pretrain for the same network."""
    shape = [*RECIPE[RECIPE.index("--batch-size") :], "--update-freq", 1, "--cpu"]
    return ["mae-lm", "pretrain", "mae_lm_tiny", data, "saved", *shape, *FAST, *SHORT]


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
    [(fairseq_train, {}), (pretrain, {"LRU_CACHE_CAPACITY": "7"}), (hydra_train, {})],
    ids=["fairseq-train", "mae-lm pretrain, a limit is exported", "fairseq-hydra-train"],
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
