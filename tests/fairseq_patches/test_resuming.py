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
from mae_lm_fairseq.utils.errors import RefusedFile
from tests.support.pickles import Calls
from tests.support.refusals import refused


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
        cfg=SimpleNamespace(checkpoint=cfg, optimization=optimization, task=None),
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


def without_last(run):
    (run / "checkpoint_last.pt").unlink()


def newer_than_last(run):
    save(run / "checkpoint_3_40.pt", 40, 6)


def damaged_and_newer(run):
    save(run / "checkpoint_3_40.pt", 40, 6)
    flip(run / "checkpoint_3_40.pt")


def nothing(run):
    pass


def intentional_rollback(run):
    """Copy an older checkpoint after the others were written."""
    shutil.copyfile(run / "checkpoint_1_10.pt", run / "checkpoint_last.pt")


def later_copy_of_an_earlier_one(run):
    save(run / "checkpoint_best.pt", 20, 7)


@pytest.mark.parametrize(
    ("change", "updates", "told"),
    [
        (without_last, 30, "checkpoint_2_30.pt"),
        (newer_than_last, 40, "is not the newest"),
        (damaged_and_newer, 30, "checkpoint_3_40.pt is passed over"),
    ],
)
def test_the_newest_valid_checkpoint_is_the_last_one(run, caplog, change, updates, told):
    change(run)
    restore_last(run)
    assert saved_updates(run / "checkpoint_last.pt") == updates
    assert told in caplog.text


@pytest.mark.parametrize(
    ("change", "updates"), [(nothing, 30), (intentional_rollback, 10), (later_copy_of_an_earlier_one, 30)]
)
def test_the_last_checkpoint_is_kept(run, caplog, change, updates):
    change(run)
    before = (run / "checkpoint_last.pt").read_bytes()
    restore_last(run)
    assert (run / "checkpoint_last.pt").read_bytes() == before
    assert saved_updates(run / "checkpoint_last.pt") == updates
    assert not caplog.records


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
    with refused(r"checkpoint_last\.pt.* --restore-file") as caught:
        restore_last(run)
    assert len(str(caught.value).splitlines()) == 1


def test_malicious_checkpoint_is_refused_and_not_replaced(run):
    malicious = Calls(os.mkdir, str(run / "it-ran"))
    torch.save({"model": {}, "cfg": malicious, "args": None}, run / "checkpoint_last.pt")
    with pytest.raises(RefusedFile):
        restore_last(run)
    assert not (run / "it-ran").exists()


def test_changed_bytes_are_detected_when_loading(run):
    path = run / "checkpoint_2_30.pt"
    flip(path)
    with refused(r"checkpoint_2_30\.pt"):
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


def state_in_epoch(iterations, processes, **limits):
    """Return the state of a run of some processes after some batches of an epoch."""
    return {
        "cfg": {"distributed_training": {"distributed_world_size": processes}, "dataset": limits},
        "extra_state": {"train_iterator": {"epoch": 2, "iterations_in_epoch": iterations}},
    }


@pytest.mark.parametrize(
    ("iterations", "before", "after", "expected"),
    [
        (30, (1, {}), (2, {"--batch-size": 8}), 15),
        (15, (2, {}), (1, {"--batch-size": 8}), 30),
        (5, (3, {}), (2, {"--batch-size": 8}), 7),
        (7, (2, {}), (2, {"--batch-size": 8}), 7),
        (0, (4, {}), (2, {"--batch-size": 8}), 0),
        # Recipes divide the sequences of an update among the processes: two take batches of 16, one of 32.
        (15, (2, {"batch_size": 16}), (1, {"--batch-size": 32}), 15),
        (15, (1, {"batch_size": 32}), (2, {"--batch-size": 16}), 15),
        (5, (1, {"batch_size": 32}), (1, {"--batch-size": 12}), 13),
        (6, (2, {"batch_size": None}), (1, {"--batch-size": 8}), 12),
        # fairseq fails if the position is after the last batch.
        (600, (1, {"max_tokens": 8192}), (1, {"--max-tokens": 16384}), 300),
    ],
)
def test_the_position_in_the_epoch_fits_other_processes_and_batches(iterations, before, after, expected):
    state = state_in_epoch(iterations, before[0], **before[1])
    convert_position(state, *after)
    assert state["extra_state"]["train_iterator"] == {"epoch": 2, "iterations_in_epoch": expected}


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
    state = state_in_epoch(30, 1)
    _read_and_check(lambda path: state, trainer_with(**settings), "a.pt", True, "a.pt")
    assert (state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 15) is converts


@pytest.mark.parametrize("optimizer", [{}, {"last_optimizer_state": None}])
def test_a_run_does_not_resume_without_optimizer_state(optimizer):
    """fairseq would start again at the first update, from the weights at the end of the run."""

    def restore(path, resumes=True, **settings):
        state = {"cfg": None, "extra_state": {}, **optimizer}
        return _read_and_check(lambda path: state, trainer_with(**settings), path, resumes, path)

    last = "save/checkpoint_last.pt"
    with refused(f"{last} .* --reset-optimizer"):
        restore(last)
    with refused(last) as refusal:
        restore(last, finetune_from_model="a.pt")
    assert "--reset-optimizer" not in str(refusal.value)  # fairseq refuses both options together
    restore(last, resumes=False)
    restore("a.pt")
    restore("a.pt", resumes=False, finetune_from_model="a.pt")
    optimizer = {"last_optimizer_state": {"step": 1}}
    restore(last)
