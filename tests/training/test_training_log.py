import math

import numpy as np
import pytest

from mae_lm_fairseq.training.training_log import (
    last_update,
    loss_curve,
    phase,
    read_records,
    seconds_of_updates,
    seconds_per_update,
)

LOG = """\
2026-01-01 00:00:00 | INFO | fairseq_cli.train | {'_name': None, 'common': {'log_interval': 10}}
2026-01-01 00:00:01 | INFO | train_inner | {"epoch": 1, "loss": "10", "num_updates": "10", "wall": "1"}
2026-01-01 00:00:02 | INFO | train_inner | {"epoch": 1, "loss": "9", "num_updates": "20", "wall": "2"}
2026-01-01 00:00:02 | INFO | valid | {"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "20"}
2026-01-01 00:00:03 | INFO | train_inner | {"epoch": 1, "loss": "8", "num_updates": "30", "wall": "3"}
2026-01-01 00:00:03 | INFO | train_inner | {"epoch": 1, "lo
2026-01-01 00:00:09 | INFO | train_inner | {"epoch": 1, "loss": "7", "num_updates": "30", "wall": "4"}
2026-01-01 00:00:09 | INFO | train | {"epoch": 1, "train_loss": "8", "train_num_updates": "30"}
2026-01-01 00:00:09 | INFO | valid | {"epoch": 1, "valid_loss": "6", "valid_num_updates": "30"}
2026-01-01 00:00:09 | INFO | fairseq_cli.train | done training in 9 seconds
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_text(LOG)
    return path


def test_curves_are_in_nats_and_a_resumed_run_overwrites_what_it_repeats(log):
    updates, losses = loss_curve(log, "train_inner")
    np.testing.assert_array_equal(updates, [10, 20, 30])
    np.testing.assert_allclose(losses, np.array([10, 9, 7]) * math.log(2))
    updates, losses = loss_curve(log, "valid")
    np.testing.assert_array_equal(updates, [20, 30])
    np.testing.assert_allclose(losses, np.array([8.5, 6]) * math.log(2))


def test_records_have_names_without_the_stage(log):
    assert read_records(log, "train") == {30: {"epoch": 1, "loss": "8", "num_updates": "30"}}
    assert list(read_records(log, "train_inner").values())[-1]["wall"] == "4"


@pytest.mark.parametrize(("speeds", "seconds"), [([800, 1.5, 800], 0.5), ([0], math.nan), ([0, 800], 0.5)])
def test_seconds_per_update_ignore_a_slow_interval_and_the_time_before_the_first_measurement(log, speeds, seconds):
    """In a slow interval, the machine was busy otherwise. fairseq logs a speed of 0 before it has measured one."""
    record = 'x | INFO | train_inner | {{"wpb": "400", "wps": "{}", "num_updates": "{}"}}\n'
    log.write_text("".join(record.format(speed, number) for number, speed in enumerate(speeds)))
    np.testing.assert_equal(seconds_per_update(read_records(log, "train_inner").values()), seconds)


@pytest.mark.parametrize(
    ("updates", "seconds"),
    [
        (20, (9 * 0.5 + 10 * 3) * 20 / 19),  # the first update has no measurement
        (30, (9 * 0.5 + 10 * 3 + 10 * 0.5) * 30 / 29),
        (40, (9 * 0.5 + 10 * 3 + 10 * 0.5) * 40 / 29),  # nor have the last 10
        (9, math.nan),
    ],
)
def test_the_seconds_of_updates_are_those_that_passed(log, updates, seconds):
    """Slow intervals count: a median times the updates would be more, or less, than the training has taken."""
    record = 'x | INFO | train_inner | {{"wpb": "400", "wps": "{}", "num_updates": "{}"}}\n'
    speeds = [(1, 0), (10, 800), (20, 400 / 3), (30, 1600), (30, 800)]  # a resumed process repeats the last ones
    log.write_text("".join(record.format(speed, number) for number, speed in speeds))
    np.testing.assert_allclose(seconds_of_updates(read_records(log, "train_inner"), updates), seconds)


def test_last_update_reads_the_end_of_the_file(log, tmp_path):
    assert last_update(log) == 30
    log.write_text(LOG + "x" * 100_000)  # a resumed run begins with its configuration
    assert last_update(log) == 30
    log.write_text(LOG + "x" * 1_000_000)
    assert last_update(log) == 0
    log.write_text("x" * 100_000 + LOG)
    assert last_update(log) == 30
    log.write_text(LOG[: LOG.index('"30"') + 2])  # a line that is being written
    assert last_update(log) == 20
    assert last_update(tmp_path / "absent") == 0
    log.write_text("")
    assert last_update(log) == 0


def test_phases_follow_the_messages_of_fairseq(log):
    """In the order of a training that validates and saves; what is printed between them changes nothing."""
    seen, messages = [], ("", *_MESSAGES, "[resource_tracker] 0")
    for number in range(len(messages)):
        log.write_text("\n".join(messages[: number + 1]))
        seen.append(phase(log))
    assert seen == ["starting", "training", "validating", "training", "saving", "training", "evaluating", "evaluating"]


_MESSAGES = (
    "x | INFO | fairseq_cli.train | Start iterating over samples",
    'x | INFO | fairseq_cli.train | begin validation on "valid" subset',
    'x | INFO | valid | {"valid_loss": "6", "valid_num_updates": "30"}',
    "x | INFO | fairseq.checkpoint_utils | Preparing to save checkpoint for epoch 1 @ 30 updates",
    "x | INFO | fairseq.checkpoint_utils | Saved checkpoint checkpoint_1_30.pt (epoch 1 @ 30 updates, score 6)",
    "x | INFO | fairseq_cli.train | done training in 0.6 seconds",
)
