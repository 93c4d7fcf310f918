"""Training with ``--store-ema``: the averages, resuming, and starting from checkpoints with and without them."""

import pytest
import torch

from mae_lm_fairseq.trained.averaging import with_ema
from tests.support.bundles import saved
from tests.support.comparisons import assert_equal
from tests.support.finetuning import finetune, train_here, write_sentences
from tests.support.refusals import refused
from tests.support.training import RECIPE

pytestmark = pytest.mark.integration  # trains

DECAY = 0.5
EMBEDDINGS, OUTPUT = "autoencoder.encoder.embed_tokens.weight", "autoencoder.lm_head.weight"
"""Names of a tied weight."""


def train(data_bin, save_dir, updates, *options):
    """Train, with a checkpoint of each update, and return the last one."""
    save = ["--save-dir", save_dir, "--save-interval-updates 1 --no-epoch-checkpoints --num-workers 0"]
    words = [*RECIPE, "--arch mae_lm_tiny --disable-validation --max-update", updates, *save, *options]
    train_here(data_bin, *words)
    return saved(save_dir / "checkpoint_last.pt")


@pytest.mark.parametrize(
    ("options", "every"),
    [([], 1), (["--ema-fp32 --autocast bf16 --ema-update-freq 3"], 3)],
    ids=["float32", "bf16, every third update"],
)
def test_resuming_ends_with_the_averages_of_one_run(data_bin, tmp_path, options, every):
    """A loop also computes them; with a decay of 1/2 its rounding is the same. Dropout is on."""
    options = ["--store-ema", "--ema-decay", DECAY, *options]
    once = train(data_bin, tmp_path / "once", 4, *options)
    train(data_bin, tmp_path / "twice", 2, *options)
    last = tmp_path / "twice/checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:-100])  # recovery reads another checkpoint
    twice = train(data_bin, tmp_path / "twice", 4, *options)
    assert_equal(once["model"], twice["model"])
    assert_equal(once["extra_state"]["ema"], twice["extra_state"]["ema"])
    averages = None
    for update in range(1, 5):
        [path] = (tmp_path / "once").glob(f"checkpoint_*_{update}.pt")
        weights = saved(path)["model"]
        if averages is None:
            averages = weights
        elif update % every == 0:
            averages = {name: DECAY * average + (1 - DECAY) * weights[name] for name, average in averages.items()}
    assert_equal(once["extra_state"]["ema"], averages)
    assert torch.equal(averages[EMBEDDINGS], averages[OUTPUT])
    assert not torch.equal(averages[EMBEDDINGS], once["model"][EMBEDDINGS])


def test_averages_can_begin_with_a_checkpoint_that_has_none(data_bin, tmp_path):
    without = train(data_bin, tmp_path, 1)
    last = train(data_bin, tmp_path, 2, "--store-ema --ema-decay 1")
    assert_equal(last["extra_state"]["ema"], without["model"])
    seed = ["--store-ema --ema-decay 1 --ema-seed-model"]
    seeded = train(data_bin, tmp_path / "seeded", 1, *seed, tmp_path / "checkpoint_1_2.pt", "--seed 2")
    assert_equal(seeded["extra_state"]["ema"], without["model"])
    with refused(r"checkpoint_1_1\.pt .*--ema-seed-model"):
        train(data_bin, tmp_path / "refused", 1, *seed, tmp_path / "checkpoint_1_1.pt")


def test_averages_of_the_parts_that_fine_tuning_drops_are_not_saved(data_bin, tmp_path):
    sentences = write_sentences(tmp_path / "sentences", data_bin / "dict.txt")
    averaged = ["--store-ema", "--ema-fp32", "--ema-decay", DECAY]
    train(data_bin, tmp_path / "pretrained", 1, *averaged)
    start = ["--finetune-from-model", tmp_path / "pretrained/checkpoint_last.pt"]
    last = finetune(sentences, tmp_path / "tuned", *start, *averaged, "--max-update 1")
    extra = last["extra_state"]
    assert extra["ema_fp32_params"].keys() == last["model"].keys()
    assert_equal(with_ema(last, "checkpoint.pt")["model"], extra["ema"])
