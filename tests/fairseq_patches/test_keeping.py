"""``--keep-at``: weights that are kept while training continues, and numbers of updates that are refused."""

import pytest
from fairseq import tasks

from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.support.bundles import saved
from tests.support.comparisons import assert_equal
from tests.support.fairseq_commands import complaint
from tests.support.refusals import refused
from tests.support.training import RECIPE, parse

END_OF_EPOCH = 2
AVERAGED = ["--store-ema --ema-decay 0.5"]


@pytest.fixture
def train(data_bin, fairseq_train):
    """Return ``train(save_dir, updates, *options)``, which trains on a small split and returns the finished process."""

    def train(save_dir, updates, *options):
        data = ["--train-subset valid --valid-subset train --batch-size 32 --num-workers 0"]
        save = ["--save-dir", save_dir, "--no-epoch-checkpoints", "--disable-validation", "--max-update", updates]
        return fairseq_train(data_bin, *RECIPE, "--arch mae_lm_tiny", *data, *save, *AVERAGED, *options)

    return train


def without_training_state(state: dict) -> dict:
    """Return what is kept of a checkpoint, for which only resuming needs the rest."""
    del state["last_optimizer_state"]
    state["optimizer_history"] = state["optimizer_history"][-1:]
    del state["extra_state"]["previous_training_time"], state["extra_state"]["metrics"]
    return state


def assert_same_checkpoint(kept: dict, expected: dict) -> None:
    """Check that two checkpoints are equal, bit by bit, but for the options of the runs that saved them."""
    weights = []
    for state in (kept, expected):
        assert state.pop("cfg")["model"]["_name"] == "mae_lm_tiny"
        weights.append(state.pop("model") | {f"ema.{name}": w for name, w in state["extra_state"].pop("ema").items()})
    assert kept == expected
    assert_equal(*weights)


def test_kept_weights_are_those_of_a_training_that_ends_there(train, tmp_path):
    """Also at the end of an epoch, and of the training. What resuming needs is left out."""
    done = train(tmp_path / "once", 3, "--keep-at 2,3 --keep-dir", tmp_path / "models")
    assert done.returncode == 0, done.stderr
    assert f"next: mae-lm bundle {tmp_path / 'models' / '3.pt'} " in done.stdout
    for updates in (END_OF_EPOCH, 3):
        assert train(tmp_path / "parts", updates).returncode == 0
        kept = saved(tmp_path / "models" / f"{updates}.pt")
        assert (kept["extra_state"]["train_iterator"]["iterations_in_epoch"] == 0) == (updates == END_OF_EPOCH)
        assert_same_checkpoint(kept, without_training_state(saved(tmp_path / "parts/checkpoint_last.pt")))


def test_a_training_that_resumes_keeps_the_update_of_its_checkpoint(train, tmp_path):
    """The option replaces nothing that is kept, and refuses a number that it cannot keep any more."""
    assert train(tmp_path, 2).returncode == 0
    before = without_training_state(saved(tmp_path / "checkpoint_last.pt"))
    refusal = complaint(train(tmp_path, 4, "--keep-at 1,4"))
    assert refusal.startswith(f"error: --keep-at 1: the training has reached update 2 and {tmp_path}/1.pt does not")
    (tmp_path / "1.pt").write_text("kept before")
    assert train(tmp_path, 4, "--keep-at 1,2,4").returncode == 0
    assert (tmp_path / "1.pt").read_text() == "kept before"
    assert_same_checkpoint(saved(tmp_path / "2.pt"), before)
    (tmp_path / "4.pt").unlink()
    assert train(tmp_path, 4, "--keep-at 4").returncode == 0  # a training that has ended
    assert saved_updates(tmp_path / "4.pt") == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *((["--max-update 4 --keep-at", text], f"--keep-at {text}: .* 4") for text in ("0", "2,5", "x", "2,", "")),
        (["--max-update 0 --keep-at 2,0"], "--keep-at 2,0"),
        (["--keep-dir models"], "--keep-dir models"),
    ],
)
def test_numbers_that_are_impossible_are_refused(data_bin, options, named):
    cfg = parse(data_bin, *RECIPE, "--arch mae_lm_tiny", *options)
    with refused(named):
        tasks.setup_task(cfg.task)
