"""Choice of the checkpoint from which a run resumes."""

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils

from mae_lm_fairseq.fairseq_patches.loading import _read_and_check
from mae_lm_fairseq.fairseq_patches.resuming import (
    _stop_if_done,
    convert_position,
    restore_last,
    resume_from_newest_checkpoint,
    saved_updates,
)
from mae_lm_fairseq.utils.errors import RefusedFile, UserError


def save(path: Path, updates: int, time: int, **extra_state):
    """Write a checkpoint with this number of updates and this modification time."""
    history = [{"num_updates": updates, "lr_scheduler_state": {}, "optimizer_name": "Adam"}]
    state = {"model": {"weight": torch.full((5000,), float(updates))}, "args": None, "cfg": None}
    torch.save({**state, "optimizer_history": history, "extra_state": {"train_iterator": {}, **extra_state}}, path)
    os.utime(path, ns=(time, time))


@pytest.fixture
def run(tmp_path):
    """Create a save directory as fairseq leaves it after update 30."""
    for name, updates, time in (("1_10", 10, 1), ("2_20", 20, 2), ("2", 25, 3), ("2_30", 30, 4), ("last", 30, 5)):
        save(tmp_path / f"checkpoint{'_' if name != '2' else ''}{name}.pt", updates, time)
    save(tmp_path / "crash.pt", 99, 9)
    save(tmp_path / "checkpoint_mine.pt", 98, 9)
    return tmp_path


def cut(path: Path):
    time = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes()[:-100])
    os.utime(path, ns=(time, time))


def flip(path: Path):
    """Flip one bit of a weight, which torch loads without complaint."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_valid_newest_checkpoint_is_kept(run, caplog):
    before = (run / "checkpoint_last.pt").read_bytes()
    restore_last(run)
    assert (run / "checkpoint_last.pt").read_bytes() == before
    assert not caplog.records


def test_empty_directory(tmp_path):
    restore_last(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_checkpoint_is_replaced_by_the_newest_valid_one(run, caplog, damage):
    damage(run / "checkpoint_last.pt")
    damage(run / "checkpoint_2_30.pt")
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 25
    passed_over, message = (record.getMessage() for record in caplog.records)
    assert re.search(r"checkpoint_2_30\.pt is passed over: it.* is damaged", passed_over)
    assert "checkpoint_last.pt is damaged" in message
    assert "resuming from checkpoint2.pt, update 25" in message
    assert {path.name for path in run.glob("checkpoint_?.*")} == set()  # no temporary files


def test_a_kill_before_the_copy(run, caplog):
    save(run / "checkpoint_3_40.pt", 40, 6)
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 40
    assert "is not the newest" in caplog.text


@pytest.mark.parametrize(("loss", "updates"), [(2.0, 40), (3.0, 20), (None, 20)])
def test_a_kill_before_the_best_one_was_copied(run, loss, updates):
    """Every checkpoint has the value ``best``, so that fairseq would copy no later one with a higher loss."""
    save(run / "checkpoint_best.pt", 20, 2)
    save(run / "checkpoint_3_40.pt", 40, 6, val_loss=loss, best=2.0)
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 40
    assert saved_updates(run / "checkpoint_best.pt") == updates


def test_the_best_checkpoint_is_not_replaced_by_an_older_one(run):
    save(run / "checkpoint_best.pt", 45, 2, val_loss=2.0, best=2.0)
    save(run / "checkpoint_3_40.pt", 40, 6, val_loss=2.0, best=2.0)
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 40
    assert saved_updates(run / "checkpoint_best.pt") == 45


@pytest.mark.parametrize(
    ("resets", "epoch", "iterations", "steps"),
    [
        ({}, 3, 0, [(2, 1.5)]),
        ({}, 3, 4, []),
        ({}, 1, 0, []),
        ({"reset_optimizer": True}, 3, 0, []),
        ({"reset_lr_scheduler": True}, 3, 0, []),
    ],
)
def test_the_schedule_takes_the_step_of_a_finished_epoch(resets, epoch, iterations, steps, tmp_path):
    """fairseq saves before it; a schedule that begins anew has no epoch behind it."""
    none = dict.fromkeys(("reset_lr_scheduler", "reset_optimizer"), False)
    chosen = {"restore_file": "a.pt", "no_save": True, "patience": -1, "reset_dataloader": True}
    cfg = SimpleNamespace(save_dir=str(tmp_path), **{**none, **chosen, **resets})
    optimization = SimpleNamespace(max_update=0, stop_time_hours=0)
    taken = []
    trainer = SimpleNamespace(
        lr_step=lambda *step: taken.append(step),
        get_lr=lambda: 1.0,
        data_parallel_rank=0,
        get_num_updates=lambda: 7,
        cumulative_training_time=lambda: 0,
        cfg=SimpleNamespace(checkpoint=cfg, optimization=optimization),
    )
    iterator = SimpleNamespace(epoch=epoch, iterations_in_epoch=iterations, dataset=[])

    def load(cfg, trainer):
        return {"val_loss": 1.5}, iterator

    resume_from_newest_checkpoint.__wrapped__(load, cfg, trainer)
    assert taken == steps


@pytest.mark.parametrize(("most", "is_done"), [(6, True), (7, True), (8, False), (0, False)])
def test_a_run_that_has_reached_its_updates_is_complete(most, is_done):
    """fairseq would make one more update."""
    optimization = SimpleNamespace(max_update=most, stop_time_hours=0, max_epoch=0)
    cfg = SimpleNamespace(optimization=optimization, checkpoint=SimpleNamespace(patience=-1))
    _stop_if_done(SimpleNamespace(cfg=cfg, get_num_updates=lambda: 7, cumulative_training_time=lambda: 0))
    assert (optimization.max_epoch == -1) == is_done


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_newest_checkpoint_is_named(run, caplog, damage):
    save(run / "checkpoint_3_40.pt", 40, 6)
    damage(run / "checkpoint_3_40.pt")
    restore_last(run)
    [record] = caplog.records
    assert re.search(r"checkpoint_3_40\.pt is passed over: it.* is damaged", record.getMessage())
    assert saved_updates(run / "checkpoint_last.pt") == 30


def test_a_kill_before_the_first_copy(run):
    (run / "checkpoint_last.pt").unlink()
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 30


def test_intentional_rollback_is_kept(run, caplog):
    """An older checkpoint was copied to checkpoint_last.pt after the others were written."""
    shutil.copyfile(run / "checkpoint_1_10.pt", run / "checkpoint_last.pt")
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 10
    assert not caplog.records


def test_later_copies_of_earlier_checkpoints_are_not_newer(run):
    save(run / "checkpoint_best.pt", 20, 7)
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 30


def test_names_with_a_suffix_are_another_run(run):
    save(run / "checkpoint_last_b.pt", 3, 5)
    save(run / "checkpoint_1_5_b.pt", 5, 6)
    cut(run / "checkpoint_last_b.pt")
    restore_last(run, "_b")
    assert [saved_updates(run / f"checkpoint_last{suffix}.pt") for suffix in ("", "_b")] == [30, 5]


def test_no_valid_checkpoint(run):
    for path in run.glob("checkpoint*.pt"):
        if path.name != "checkpoint_mine.pt":
            cut(path)
    with pytest.raises(
        UserError, match="no other checkpoint in that directory is valid; choose one with --restore-file"
    ) as caught:
        restore_last(run)
    assert len(str(caught.value).splitlines()) == 1


def test_malicious_checkpoint_is_refused_and_not_replaced(run):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(run / "it-ran"),)

    torch.save({"model": {}, "cfg": Malicious(), "args": None}, run / "checkpoint_last.pt")
    with pytest.raises(RefusedFile):
        restore_last(run)
    assert not (run / "it-ran").exists()


def test_changed_bytes_are_detected_when_loading(run):
    path = run / "checkpoint_2_30.pt"
    flip(path)
    with pytest.raises(UserError, match="it is damaged, or not a checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert torch.load(path)["model"]["weight"].unique().numel() == 2  # torch itself loads it


def test_a_file_in_the_older_format(run):
    state = torch.load(run / "checkpoint_last.pt")
    torch.save(state, run / "checkpoint_last.pt", _use_new_zipfile_serialization=False)
    before = (run / "checkpoint_last.pt").read_bytes()
    restore_last(run)
    assert (run / "checkpoint_last.pt").read_bytes() == before
    cut(run / "checkpoint_last.pt")
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == 30


@pytest.mark.parametrize(
    ("before", "iterations", "now", "expected"),
    [(1, 30, 2, 15), (2, 15, 1, 30), (3, 5, 2, 7), (2, 7, 2, 7), (4, 0, 2, 0)],
)
def test_the_position_in_the_epoch_fits_another_number_of_processes(before, iterations, now, expected):
    state = {
        "cfg": {"distributed_training": {"distributed_world_size": before}},
        "extra_state": {"train_iterator": {"epoch": 2, "iterations_in_epoch": iterations}},
    }
    convert_position(state, now, {"--batch-size": 8})
    assert state["extra_state"]["train_iterator"] == {"epoch": 2, "iterations_in_epoch": expected}


@pytest.mark.parametrize(
    ("before", "iterations", "now", "expected"),
    [((2, 16), 15, (1, 32), 15), ((1, 32), 15, (2, 16), 15), ((1, 32), 5, (1, 12), 13), ((2, None), 6, (1, 8), 12)],
)
def test_the_position_in_the_epoch_fits_another_batch_size(before, iterations, now, expected):
    """Recipes divide the sequences of an update among the processes: two take batches of 16, one of 32."""
    state = {
        "cfg": {
            "distributed_training": {"distributed_world_size": before[0]},
            "dataset": {"batch_size": before[1]},
        },
        "extra_state": {"train_iterator": {"iterations_in_epoch": iterations}},
    }
    convert_position(state, now[0], {"--batch-size": now[1]})
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == expected


def test_the_position_in_the_epoch_fits_another_number_of_tokens():
    """With twice as many tokens per batch; fairseq fails if the position is after the last batch."""
    state = {
        "cfg": {"distributed_training": {"distributed_world_size": 1}, "dataset": {"max_tokens": 8192}},
        "extra_state": {"train_iterator": {"iterations_in_epoch": 600}},
    }
    convert_position(state, 1, {"--max-tokens": 16384})
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 300


def trainer_with(**settings):
    """Return what :func:`_read_and_check` uses of a trainer with these options of checkpoints."""
    cfg = SimpleNamespace(
        checkpoint=SimpleNamespace(
            **{"finetune_from_model": None, "reset_dataloader": False, "save_dir": "save"} | settings
        ),
        distributed_training=SimpleNamespace(distributed_world_size=2),
        dataset={"batch_size": 8},
        ema=SimpleNamespace(store_ema=False),
        optimizer=SimpleNamespace(_name="adam"),
    )
    return SimpleNamespace(cfg=cfg, task=None, get_model=lambda: None)


@pytest.mark.parametrize(
    ("settings", "converts"),
    [({}, True), ({"finetune_from_model": "a.pt"}, False), ({"reset_dataloader": True}, False)],
)
def test_position_is_not_converted_if_the_epoch_starts_anew(settings, converts):
    state = {
        "cfg": {"distributed_training": {"distributed_world_size": 1}},
        "extra_state": {"train_iterator": {"iterations_in_epoch": 30}},
    }
    _read_and_check(lambda path: state, trainer_with(**settings), "a.pt", True, "a.pt")
    assert (state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 15) is converts


@pytest.mark.parametrize("optimizer", [{}, {"last_optimizer_state": None}])
def test_a_run_does_not_resume_without_optimizer_state(optimizer):
    """fairseq would start again at the first update, from the weights at the end of the run."""

    def restore(path, resumes=True, **settings):
        state = {"cfg": None, "extra_state": {}, **optimizer}
        return _read_and_check(lambda path: state, trainer_with(**settings), path, resumes, path)

    own = "save/checkpoint_last.pt"
    message = f"{own} has no optimizer state, so the run cannot resume; remove the checkpoints in save to train again"
    again = "or start once with --reset-optimizer, a new run from its weights"
    with pytest.raises(UserError, match=f"^{message}, {again}$"):
        restore(own)
    with pytest.raises(UserError, match=f"^{message}$"):  # fairseq refuses both options together
        restore(own, finetune_from_model="a.pt")
    restore(own, resumes=False)
    restore("a.pt")
    restore("a.pt", resumes=False, finetune_from_model="a.pt")
    optimizer = {"last_optimizer_state": {"step": 1}}
    restore(own)
