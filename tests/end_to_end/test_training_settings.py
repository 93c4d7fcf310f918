"""Settings of speed and memory that training promises, in processes that users' commands start."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.measure_resources import Training
from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.utils.allocator import CAPACITIES
from mae_lm_fairseq.utils.files import read_json
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support import ROOT, words_of
from tests.support.processes import wait_for
from tests.support.training import RECIPE

PROBE = ROOT / "tests/support/probe"
UPDATES = 2
FAST = ["--autocast bf16 --optimizer fused_adamw --checkpoint-activations"]
SHORT = ["--max-update", UPDATES, "--disable-validation --no-save --num-workers 0"]


@pytest.fixture(autouse=True)
def nothing_exported(monkeypatch):
    """Remove the limits that a training in this process has left in the environment."""
    for name in CAPACITIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def probed(run_cli, tmp_path) -> Callable[..., list[dict]]:
    """Return ``probed(command, **env)``, which runs a command and returns what was found in each training process."""

    def run(command: list, **env: str) -> list[dict]:
        records = tmp_path / "probe"
        records.mkdir()
        path = os.pathsep.join([str(PROBE), str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = run_cli(command, cwd=tmp_path, env={"PYTHONPATH": path, "PROBE": str(records), **env})
        assert done.returncode == 0, done.stdout + done.stderr
        return [read_json(file) for file in records.iterdir()]

    return run


def fairseq_train(data: Path) -> list:
    """Return the command of fairseq-train, with two layers in the encoder and two in the decoder."""
    recipe = [*RECIPE, "--arch mae_lm_tiny --user-dir", PACKAGE]
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
    return ["fairseq-hydra-train", "--config-dir", data.parent, "--config-name recipe"]


@pytest.mark.parametrize(
    ("command", "exported"),
    [(fairseq_train, {}), (hydra_train, {"LRU_CACHE_CAPACITY": "7"})],
    ids=["fairseq-train", "fairseq-hydra-train, a limit is exported"],
)
def test_promises_hold_in_the_users_commands(probed, data_bin, command, exported):
    [record] = probed(command(data_bin), **exported)
    # oneDNN and torch read the limits with the first primitive.
    assert record["limits"] == dict.fromkeys(CAPACITIES, "64") | exported
    assert record["kept_fraction"] > 0.9  # the system takes back either the whole block or nothing of it
    assert record["optimizer"] == {"name": "AdamW", "fused": True}
    assert record["updates"] == UPDATES
    assert record["dtypes"]["Linear"] == "torch.bfloat16"
    # Two layers in the encoder and two in the decoder; each is computed again in the backward pass.
    assert record["forwards"]["TransformerLayer"] == 2 * 4 * UPDATES


@pytest.mark.slow  # compiles C++ three times
def test_compiled_training_resumes_bit_equal(ragged_data, tmp_path):
    """Killed, and resumed in a new process whose first batch has another size, each with a cache of its own."""
    command = [sys.executable, "-m", "fairseq_cli.train", ragged_data, *RECIPE, "--arch mae_lm_tiny --compile"]
    command += ["--user-dir", PACKAGE, "--num-workers 0 --disable-validation --tokens-per-sample 128"]
    command += ["--max-positions 128 --max-update 4 --save-interval-updates 2"]

    def start(run: str, process: str) -> subprocess.Popen:
        environment = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / process)}
        options = ["--save-dir", tmp_path / run]
        with open(tmp_path / f"{process}.log", "w") as log:
            words = words_of(*command, *options)
            return subprocess.Popen(words, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)

    began = time.monotonic()
    with start("killed", "first") as first:
        wait_for((tmp_path / "killed/checkpoint_1_2.pt").exists)
        print(f"two updates after {time.monotonic() - began:.0f} s")
        first.kill()
    for run, process in (("killed", "second"), ("once", "third")):
        with start(run, process) as last:
            assert last.wait() == 0, (tmp_path / f"{process}.log").read_text()[-2000:]
    assert "Loaded checkpoint" in (tmp_path / "second.log").read_text()
    assert list((tmp_path / "third").rglob("*.so"))
    assert_same_training_state(*(checkpoint(tmp_path / run) for run in ("killed", "once")))


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
    shape = ["--batch-size 32 --tokens-per-sample 128 --encoder-embed-dim 64 --encoder-layers 1"]
    options = [*shape, "--decoder-layers 1 --cpu --no-save --disable-validation --update-freq 1"]
    options += ["--max-update 96 --log-interval 8"]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        options += ["--autocast bf16"]
    command = ["fairseq_cli.train", ragged_data, *RECIPE[: RECIPE.index("--batch-size")], "--arch mae_lm_tiny"]
    command += ["--user-dir", PACKAGE, "--sample-break-mode complete_doc --log-format simple"]
    training = Training(words_of(sys.executable, "-m", *command, *options), tmp_path / "log", {"OMP_NUM_THREADS": "1"})
    try:
        while not training.updates or training.updates[-1] < 96:
            training.advance()
    finally:
        training.kill()
    # The first 8 updates allocate what each needs. Until the last one, 32 to 35 MB follow; without the limits, 170 MB
    # (float32, torch 2.13).
    assert training.bytes[-1] - training.bytes[0] < 110e6
