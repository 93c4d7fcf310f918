"""Faults of a training run, a few tries each; scripts/fault_injection.py tries them more often."""

import subprocess
import sys

import pytest
import torch

from tests.fault_injection import crashes
from tests.fault_injection.report import read
from tests.fault_injection.training import Workplace, difference, make_data, prepare_to_fork
from tests.support import ROOT


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    prepare_to_fork()
    return make_data(tmp_path_factory.mktemp("faults") / "data")


@pytest.fixture(scope="module")
def place(tmp_path_factory, data):
    return Workplace(tmp_path_factory.mktemp("faults") / "place", data)


@pytest.mark.parametrize("fault", crashes.FAULTS, ids=lambda fault: fault.rows.__name__)
def test_nothing_is_lost(place, fault):
    rows = list(fault.rows(place, fault.few))
    assert [row.losses for row in rows] == [[]] * len(rows)
    assert sum(row.tried for row in rows) >= fault.few


@pytest.mark.slow
def test_the_whole_program(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/fault_injection.py", "--quick", "--json", tmp_path / "table.json"]
    )
    assert done.returncode == 0
    assert all(row.tried and not row.losses for row in read(tmp_path / "table.json"))


def test_a_finished_run_is_not_trained_further(place):
    """A run can be killed after its last checkpoint but before it ends."""
    training = place.training()
    assert training.finish(10) is None
    last = training.directory / "checkpoint_last.pt"
    before = last.read_bytes()
    assert training.finish(10) is None
    assert last.read_bytes() == before
    assert training.finish(11) is None
    assert training.saved_updates() == 11


class TestTheTableCanFail:
    """Losses that must show up in the table."""

    def test_another_end(self, place, monkeypatch):
        """Simulate a resumed run that draws other masks and dropout."""
        other = place.training("--seed", "2")
        assert other.finish(30) is None
        usual = Workplace.undisturbed
        monkeypatch.setattr(Workplace, "undisturbed", lambda place, end: other if end == 30 else usual(place, end))
        (row,) = crashes.divergence(place, 1)
        assert row.losses[0].startswith("model ")

    def test_a_run_that_starts_anew(self, place, monkeypatch):
        monkeypatch.setattr("mae_lm_fairseq.fairseq_patches.resuming.restore_last", lambda *_: None)
        (row,) = crashes.damaged_checkpoints(place, 1)
        assert "damaged" in row.losses[0]

    def test_differences(self, tmp_path):
        state = {
            "model": {"weight": torch.zeros(3)},
            "last_optimizer_state": {"state": {0: {"step": 1, "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1}]},
            "optimizer_history": [{"num_updates": 4}],
            "extra_state": {"train_iterator": {"epoch": 2}},
        }
        torch.save(state, tmp_path / "a.pt")
        assert difference(tmp_path / "a.pt", tmp_path / "a.pt") is None
        for change in (
            {"model": {"weight": torch.tensor([0, 0, 1e-38])}},
            {"last_optimizer_state": {"state": {0: {"step": 1, "exp_avg": torch.ones(3)}}, "param_groups": []}},
            {"optimizer_history": [{"num_updates": 5}]},
            {"extra_state": {"train_iterator": {"epoch": 3}}},
        ):
            torch.save(state | change, tmp_path / "b.pt")
            assert difference(tmp_path / "a.pt", tmp_path / "b.pt"), change
