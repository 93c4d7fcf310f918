"""Two trainings in one directory: one trains, the other ends before its first update."""

import os
import re
import signal
import socket
import sys
from functools import partial

import pytest

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.fault_injection.training import SETTINGS, Workplace, difference, make_data, prepare_to_fork
from tests.support.processes import connected, wait_for
from tests.utils.test_locks import is_free

ENDLESS = 10**6


@pytest.fixture
def place(tmp_path):
    prepare_to_fork()
    return Workplace(tmp_path / "place", make_data(tmp_path / "data"))


@pytest.fixture
def start():
    """Return ``start(training, fault=None)``, which starts an endless process; it is killed after the test."""
    started = []

    def start(training, fault=None):
        started.append(training.start(ENDLESS, fault))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def assert_refused(process, directory, holder: int | None = None):
    """Check that a process has ended before it restored or trained anything, with a message that names the holder.

    The one that starts at the same time as the holder may read the lock before the holder has written its name there.
    """
    name = f" (process {holder} on {socket.gethostname()})" if holder else ""
    assert process.wait() == 1
    assert process.final_error().startswith(f"error: another process is using {directory}{name}")
    assert "num_updates" not in process.output()
    assert process.resumed_from() is None


def test_one_of_two_jobs_trains(place, start):
    """Both start at the same time. After a kill, the directory is free, even if data workers are left."""
    training = place.training()
    started = [start(training), start(training)]
    wait_for(lambda: any(process.has_ended() for process in started))
    loser, winner = sorted(started, key=lambda process: not process.has_ended())
    assert_refused(loser, training.directory)
    wait_for(training.last.exists)
    assert_refused(start(training), training.directory, winner.pid)
    assert not winner.has_ended()
    os.kill(winner.pid, signal.SIGKILL)
    wait_for(winner.has_ended)
    end = training.saved_updates() + 3
    assert training.finish(end) is None
    assert difference(training.last, place.undisturbed(end).last) is None


def test_all_ranks_of_the_losing_job_end(place, start):
    """Started by hand, so that nothing else ends them."""
    training = place.training()

    def start_both():
        return [start(training, partial(os.environ.update, job)) for job in connected(2)]

    winners = start_both()
    wait_for(training.last.exists)
    for loser in start_both():
        assert_refused(loser, training.directory, winners[0].pid)
    assert not any(process.has_ended() for process in winners)


def test_jobs_that_save_nothing_share_a_directory(place, start):
    training = place.training("--no-save")
    first = start(training)
    wait_for(lambda: first.log.exists() and "num_updates" in first.output())
    assert training.finish(5) is None
    assert not list(training.directory.iterdir())


@pytest.mark.slow
def test_one_of_two_jobs_on_two_nodes_trains(nodes, place, tmp_path):
    directory = tmp_path / "shared"
    command = [sys.executable, "-m", "fairseq_cli.train", place.data, *SETTINGS, "--user-dir", PACKAGE]
    command += ["--save-dir", directory, "--max-update"]
    logs = [tmp_path / "0", tmp_path / "1"]
    jobs = [node.start(*command, ENDLESS, log=log) for node, log in zip(nodes, logs, strict=True)]
    wait_for(lambda: any(job.poll() is not None for job in jobs))
    loser = 0 if jobs[0].poll() is not None else 1
    winner = 1 - loser
    assert jobs[loser].poll() == 1
    *_, last = logs[loser].read_text().splitlines()
    assert re.match(rf"error: another process is using {directory}( \(process \d+ on node{winner}\))?; wait", last)
    assert "num_updates" not in logs[loser].read_text()
    wait_for((directory / "checkpoint_last.pt").exists)
    assert jobs[winner].poll() is None
    jobs[winner].kill()
    jobs[winner].wait()
    wait_for(lambda: is_free(directory))  # the processes of the node end after the command that isolates them
    end = saved_updates(directory / "checkpoint_last.pt") + 20
    assert nodes[loser].start(*command, end, log=logs[loser]).wait() == 0, logs[loser].read_text()
    assert saved_updates(directory / "checkpoint_last.pt") == end
