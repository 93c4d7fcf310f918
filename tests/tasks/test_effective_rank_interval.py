"""``--effective-rank-interval``: measurements, their schedule and logging, and their independence from training."""

import json
import logging
import os
import shutil

import numpy as np
import pytest
import torch

from mae_lm_fairseq.tasks import monitoring
from mae_lm_fairseq.tasks.monitoring import MONITORED_TOKENS, monitored_texts
from mae_lm_fairseq.tasks.splits import load_sequences
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support.finetuning import WITHOUT_EPOCHS, train_here
from tests.support.refusals import refused
from tests.support.training import RECIPE, set_up

pytestmark = pytest.mark.integration  # trains

EVERY_4 = ("--effective-rank-interval 4",)
NAMES = [
    ("mae_lm_tiny", 0, ["real_clean", "real_as_trained", "real_forced", "mask_forced"]),
    ("mae_lm_tiny", 1, ["real_clean", "real_as_trained", "mask_as_trained"]),
    ("mae_lm_roberta_tiny", 0, ["real_clean", "real_as_trained", "mask_as_trained"]),
]


@pytest.fixture
def pretrain(data_bin, caplog):
    """Return ``pretrain(save_dir, *options)``: train in this process and return the measured ranks by update."""

    def run(save_dir, *options, arch="mae_lm_tiny", data=data_bin):
        caplog.clear()
        caplog.set_level(logging.INFO)
        train_here(data, *RECIPE, *WITHOUT_EPOCHS, "--arch", arch, "--save-dir", save_dir, *options)
        return measured(caplog.messages)

    return run


def measured(messages):
    ranks = {}
    for message in messages:
        if message.startswith("effective ranks after "):
            update, values = message.removeprefix("effective ranks after ").split(" updates: ")
            pairs = (pair.rsplit(" ", 1) for pair in values.split(", "))
            ranks[int(update)] = {name: int(value) for name, value in pairs}
    return ranks


@pytest.mark.parametrize(("arch", "mask_in_encoder", "names"), NAMES)
def test_names_of_ranks(data_bin, monkeypatch, arch, mask_in_encoder, names):
    _, task, model, _ = set_up(data_bin, *EVERY_4, "--mask-in-encoder", mask_in_encoder, arch=arch)
    task.begin_epoch(1, model)
    task.ranks.after_update(4, model.autoencoder.encoder)
    assert list(task.ranks.latest) == [f"rank_{name}" for name in names]
    assert all(1 <= value <= 16 for value in task.ranks.latest.values())
    task.ranks.latest = {}
    monkeypatch.setattr(monitoring, "get_global_rank", lambda: 1)
    task.ranks.after_update(8, model.autoencoder.encoder)
    assert not task.ranks.latest  # only the first process measures


@pytest.mark.parametrize("arch", ["mae_lm_tiny", "mae_lm_roberta_tiny"])
def test_ranks_are_those_of_the_last_layer(data_bin, arch):
    """Only its hidden states have three directions here."""
    _, task, model, _ = set_up(data_bin, *EVERY_4, arch=arch)
    task.begin_epoch(1, model)
    encoder = model.autoencoder.encoder
    assert min(task.ranks.measure(encoder).values()) > 3
    with torch.no_grad():
        encoder.layers[-1].final_layer_norm.weight[3:] = 0
    assert max(task.ranks.measure(encoder).values()) <= 3


def test_measuring_does_not_change_training(pretrain, tmp_path):
    """Bit for bit, with dropout on, across the end of an epoch, with accumulated gradients."""
    options = ("--max-update 13 --update-freq 2 --batch-size 64",)
    assert list(pretrain(tmp_path / "with", *options, *EVERY_4)) == [4, 8, 12]
    assert pretrain(tmp_path / "without", *options) == {}
    ours, plain = checkpoint(tmp_path / "with"), checkpoint(tmp_path / "without")
    assert ours["extra_state"]["train_iterator"]["epoch"] > 1
    assert ours["extra_state"]["train_iterator"] == plain["extra_state"]["train_iterator"]
    assert_same_training_state(ours, plain)


def test_a_resumed_run_measures_the_same_texts(pretrain, tmp_path):
    once = pretrain(tmp_path / "once", *EVERY_4, "--max-update 12")
    first = pretrain(tmp_path / "twice", *EVERY_4, "--max-update 6")
    second = pretrain(tmp_path / "twice", *EVERY_4, "--max-update 12")
    assert (list(first), list(second)) == ([4], [8, 12])
    assert once == first | second
    assert_same_training_state(checkpoint(tmp_path / "once"), checkpoint(tmp_path / "twice"))


def test_every_progress_bar_gets_the_measured_ranks(pretrain, tmp_path, caplog):
    options = ("--log-format json --log-interval 2 --max-update 10 --disable-validation",)
    ranks = pretrain(tmp_path, *options, *EVERY_4, "--tensorboard-logdir", tmp_path / "board")
    records = [json.loads(message) for message in caplog.messages if message.startswith('{"epoch"')]
    records = [record for record in records if "num_updates" in record]  # without the summary of an epoch
    logged = {int(record["num_updates"]): record.get("rank_real_clean") for record in records}
    assert set(logged) == {2, 4, 6, 8, 10}
    values = {update: measured_ranks["rank_real_clean"] for update, measured_ranks in ranks.items()}
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
    rows = [row[row.ne(1)] for batch in task.ranks.batches for row in batch.tokens]
    assert len(rows) == len(blocks)  # the test data has fewer tokens than the limit
    assert all(torch.equal(row, block) for row, block in zip(rows, blocks, strict=True))
    monkeypatch.setattr(monitoring, "MONITORED_TOKENS", int(np.sum(blocks.sizes)) // 4)
    _, task, model, _ = set_up(data_bin, *EVERY_4)
    task.begin_epoch(1, model)
    rows = [row[row.ne(1)] for batch in task.ranks.batches for row in batch.tokens]
    assert len(rows) == pytest.approx(len(blocks) / 4, abs=1)
    assert torch.equal(rows[-1], blocks[len(blocks) * (len(rows) - 1) // len(rows)])
    assert MONITORED_TOKENS == 4096


def test_texts_are_those_of_the_first_shard_in_every_epoch(data_bin, tmp_path):
    other = shutil.copytree(data_bin, tmp_path / "other")
    for suffix in ("bin", "idx"):
        shutil.copy(data_bin / f"train.{suffix}", other / f"valid.{suffix}")
    _, task, model, _ = set_up(f"{data_bin}{os.pathsep}{other}", *EVERY_4)
    expected = monitored_texts(load_sequences(task.cfg, task.dictionary, "valid", 1, combine=False))
    for epoch in (1, 2):
        task.ranks = None
        task.begin_epoch(epoch, model)
        rows = [row[row.ne(1)].tolist() for batch in task.ranks.batches for row in batch.tokens]
        assert rows == expected


def test_no_validation_split(data_bin, pretrain, tmp_path):
    data = shutil.copytree(data_bin, tmp_path / "data")
    for file in data.glob("valid.*"):
        file.unlink()
    with refused(r"valid\.idx"):
        pretrain(tmp_path / "saved", "--disable-validation --max-update 2", *EVERY_4, data=data)
