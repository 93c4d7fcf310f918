"""Atomic saving of checkpoints; each test fails without its patch."""

import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches import saving as saving_patches
from mae_lm_fairseq.utils.errors import UserError
from tests.support.disks import room_for

mae_lm_fairseq.register()


class TestSaving:
    """Both ways in which fairseq gives a checkpoint its names."""

    @pytest.fixture(params=["torch_persistent_save", "PathManager.copy"])
    def saving(self, request, tmp_path):
        """Return ``saving(state)``, which returns ``save(path)``; ``save`` runs fairseq's own code if ``original``."""
        source = tmp_path / "source.pt"

        def saving(state: dict):
            def save(path: Path, original: bool = False) -> None:
                if request.param == "torch_persistent_save":
                    function, arguments = checkpoint_utils.torch_persistent_save, (state, str(path))
                else:
                    function, arguments = PathManager.copy, (str(source), str(path), True)
                (function.__wrapped__ if original else function)(*arguments)

            torch.save(state, source)
            return save

        return saving

    @pytest.mark.parametrize("original", [False, True])
    def test_failed_write_keeps_the_old_file(self, tmp_path, saving, monkeypatch, original):
        """A real limit on the size of files makes the write fail midway, as a full disk does."""
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        path = tmp_path / "saved/checkpoint.pt"
        path.parent.mkdir()
        saving({"updates": 1})(path)
        saving({"updates": 2})(path)
        save = saving({"updates": 3, "weight": torch.zeros(100_000)})
        refused = (OSError, RuntimeError) if original else UserError
        with pytest.raises(refused, match=r"File too large|unexpected pos"), room_for(50_000):
            save(path, original)
        intact = os.listdir(path.parent) == [path.name] and path.stat().st_size < 5_000
        assert intact is not original
        assert original or torch.load(path) == {"updates": 2}

    def test_file_is_synced_before_it_is_renamed(self, tmp_path, saving, monkeypatch):
        order = []
        for name in ("fsync", "replace"):
            original = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, name=name, original=original: [order.append(name), original(*a)])
        saving({"updates": 1})(tmp_path / "checkpoint.pt")
        assert order == ["fsync", "replace", "fsync"]

    @pytest.mark.integration  # kills processes
    def test_killed_at_any_moment(self, tmp_path, saving):
        path, generator = tmp_path / "checkpoint.pt", random.Random(0)
        saving({"updates": -1})(path)
        context, updates = multiprocessing.get_context("fork"), []
        for _ in range(12):
            at_work = context.Event()
            process = context.Process(target=_save_forever, args=(saving, path, at_work))
            process.start()
            assert at_work.wait(60)
            time.sleep(generator.uniform(0, 0.1))
            process.kill()
            process.join()
            updates.append(torch.load(path)["updates"])
        assert min(updates) > 3
        assert len(set(updates)) > 1
        assert set(os.listdir(tmp_path)) <= {"checkpoint.pt", ".checkpoint.pt.partial", "source.pt"}

    def test_other_file_systems_are_left_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(PathManager, "path_requires_pathmanager", lambda path: path.startswith("s3:"))
        copied = []
        assert saving_patches._copy_atomically(
            lambda *paths, overwrite: copied.append(paths) or True, "s3:a", "b", True
        )
        saving_patches._save_atomically(lambda obj, path, async_write: copied.append(path), {}, "s3:c")
        assert copied == [("s3:a", "b"), "s3:c"]


def _save_forever(saving, path: Path, at_work) -> None:
    for updates in range(10**9):
        saving({"updates": updates, "weight": torch.full((500_000,), float(updates))})(path)
        if updates > 3:
            at_work.set()
