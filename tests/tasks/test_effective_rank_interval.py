"""``--effective-rank-interval``: measurements, their schedule and logging, and their independence from training."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from fairseq_cli import train

from mae_lm_fairseq.tasks import monitoring
from mae_lm_fairseq.tasks.monitoring import MONITORED_TOKENS
from mae_lm_fairseq.tasks.splits import load_sequences
from mae_lm_fairseq.utils.errors import UserError
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support.training import RECIPE, parse, set_up

pytestmark = pytest.mark.integration  # trains

EVERY_4 = ("--effective-rank-interval", 4)
NAMES = {
    "mae_lm_tiny": ["real_clean", "real_as_trained", "real_forced", "mask_forced"],
    "mae_lm_roberta_tiny": ["real_clean", "real_as_trained", "mask_as_trained"],
}


@pytest.fixture
def pretrain(data_bin, caplog):
    """Return ``pretrain(save_dir, *options)``: train in this process and return the measured ranks by update."""

    def run(save_dir, *options, arch="mae_lm_tiny", data=data_bin):
        metrics.reset()
        checkpoint_utils.save_checkpoint.__dict__.pop("best", None)
        caplog.clear()
        caplog.set_level(logging.INFO)
        options = ["--save-dir", save_dir, "--num-workers", 0, "--no-epoch-checkpoints", *options]
        train.main(parse(data, *RECIPE, "--arch", arch, *options))
        return measured(caplog.messages)

    return run


def measured(messages):
    found = {}
    for message in messages:
        if message.startswith("effective ranks after "):
            update, values = message.removeprefix("effective ranks after ").split(" updates: ")
            pairs = (pair.rsplit(" ", 1) for pair in values.split(", "))
            found[int(update)] = {name: int(value) for name, value in pairs}
    return found


@pytest.mark.parametrize("arch", NAMES)
def test_measuring_does_not_change_training(pretrain, tmp_path, arch):
    """Bit for bit, with dropout on, across the end of an epoch, with accumulated gradients."""
    options = ("--max-update", 21, "--update-freq", 2, "--batch-size", 32)
    ranks = pretrain(tmp_path / "with", *options, *EVERY_4, arch=arch)
    assert list(ranks) == [4, 8, 12, 16, 20]
    assert all(list(found) == [f"rank_{name}" for name in NAMES[arch]] for found in ranks.values())
    assert all(1 <= value <= 16 for found in ranks.values() for value in found.values())
    assert pretrain(tmp_path / "without", *options, arch=arch) == {}
    ours, plain = checkpoint(tmp_path / "with"), checkpoint(tmp_path / "without")
    assert ours["extra_state"]["train_iterator"]["epoch"] > 1
    assert ours["extra_state"]["train_iterator"] == plain["extra_state"]["train_iterator"]
    assert_same_training_state(ours, plain)


def test_a_resumed_run_measures_the_same_texts(pretrain, tmp_path):
    once = pretrain(tmp_path / "once", *EVERY_4, "--max-update", 12)
    first = pretrain(tmp_path / "twice", *EVERY_4, "--max-update", 6)
    second = pretrain(tmp_path / "twice", *EVERY_4, "--max-update", 12)
    assert (list(first), list(second)) == ([4], [8, 12])
    assert once == first | second
    assert_same_training_state(checkpoint(tmp_path / "once"), checkpoint(tmp_path / "twice"))


def test_every_progress_bar_gets_the_measured_ranks(pretrain, tmp_path, caplog):
    options = ("--log-format", "json", "--log-interval", 2, "--max-update", 10, "--disable-validation")
    ranks = pretrain(tmp_path, *options, *EVERY_4, "--tensorboard-logdir", tmp_path / "board")
    records = [json.loads(message) for message in caplog.messages if message.startswith('{"epoch"')]
    records = [record for record in records if "num_updates" in record]  # without the summary of an epoch
    logged = {int(record["num_updates"]): record.get("rank_real_clean") for record in records}
    assert set(logged) == {2, 4, 6, 8, 10}
    values = {update: found["rank_real_clean"] for update, found in ranks.items()}
    expected = {2: None, 4: values[4], 6: values[4], 8: values[8], 10: values[8]}
    assert {update: value and float(value) for update, value in logged.items()} == expected
    [events] = (tmp_path / "board" / "train_inner").glob("events*")
    assert b"rank_real_clean" in events.read_bytes()


def test_texts_come_from_all_over_the_validation_split(data_bin, monkeypatch):
    _, task, model, _ = set_up(data_bin, *EVERY_4)
    state = np.random.get_state()[1].copy()
    task.begin_epoch(1, model)
    assert np.array_equal(np.random.get_state()[1], state)
    blocks = load_sequences(task.cfg, task.dictionary, "valid", 1, combine=False)
    rows = [row[row.ne(1)] for batch in task.ranks.monitor.batches for row in batch.tokens]
    assert len(rows) == len(blocks)  # the test data has fewer tokens than the limit
    assert all(torch.equal(row, block) for row, block in zip(rows, blocks, strict=True))
    monkeypatch.setattr(monitoring, "MONITORED_TOKENS", int(np.sum(blocks.sizes)) // 4)
    _, task, model, _ = set_up(data_bin, *EVERY_4)
    task.begin_epoch(1, model)
    rows = [row[row.ne(1)] for batch in task.ranks.monitor.batches for row in batch.tokens]
    assert len(rows) == pytest.approx(len(blocks) / 4, abs=1)
    assert torch.equal(rows[-1], blocks[len(blocks) * (len(rows) - 1) // len(rows)])
    assert MONITORED_TOKENS == 4096


def test_masks_that_the_encoder_sees_in_training_are_measured_as_trained(data_bin):
    _, task, model, _ = set_up(data_bin, *EVERY_4, "--mask-in-encoder", "1")
    task.begin_epoch(1, model)
    found = task.ranks.monitor.measure(model.autoencoder.encoder)
    assert set(found) == {"rank_real_clean", "rank_real_as_trained", "rank_mask_as_trained"}


def test_only_the_first_process_measures(data_bin, monkeypatch, tmp_path, pretrain):
    monkeypatch.setattr(monitoring, "get_global_rank", lambda: 1)
    assert pretrain(tmp_path, *EVERY_4, "--max-update", 4) == {}


def test_no_validation_split(data_bin, pretrain, tmp_path):
    data = shutil.copytree(data_bin, tmp_path / "data")
    for file in data.glob("valid.*"):
        file.unlink()
    options = ("--disable-validation", "--max-update", 2)
    with pytest.raises(UserError, match=r"--effective-rank-interval 4 needs the split valid, which .* lacks"):
        pretrain(tmp_path / "saved", *options, *EVERY_4, data=data)
    pretrain(tmp_path / "saved", *options, data=data)


def test_invalid_options_are_refused(data_bin):
    with pytest.raises(UserError, match="--effective-rank-interval -1 must be at least 0"):
        set_up(data_bin, "--effective-rank-interval", -1)
    with pytest.raises(UserError, match="choose such an --arch"):
        set_up(data_bin, *EVERY_4, arch="roberta_base")
    with pytest.raises(UserError, match="--mask-in-encoder is for models of mae_lm_fairseq"):
        set_up(data_bin, "--mask-in-encoder", 0.5, arch="roberta_base")
