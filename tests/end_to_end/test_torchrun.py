"""Training with several processes on one CPU."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.fault_injection.processes import children
from tests.fault_injection.training import make_data
from tests.support import ROOT
from tests.support.comparisons import assert_close
from tests.support.processes import ENVIRONMENT, connected, start_training, torchrun_command, wait_for
from tests.support.training import RECIPE, batches, set_up

SETTINGS = [*RECIPE, "--arch mae_lm_tiny --dropout 0 --attention-dropout 0"]
SETTINGS += ["--user-dir mae_lm_fairseq --num-workers 0 --no-epoch-checkpoints --disable-validation"]
RAGGED = ["--batch-size 32"]
SPARSE = ["--batch-size 1 --mask-prob 0.02"]


@pytest.fixture(scope="module")
def train(fairseq_train, train_together, data_bin):
    """Return ``train(processes, save_dir, *options)``, which trains and checks the exit code."""

    def run(processes, save_dir, *options, data=data_bin):
        arguments = [data, *SETTINGS, "--save-dir", save_dir, *options]
        done = fairseq_train(*arguments) if processes == 1 else train_together(processes, *arguments)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def in_two(train, tmp_path_factory):
    """Return the directory of a run of 20 updates in two processes, with checkpoints after updates 10 and 20."""
    directory = tmp_path_factory.mktemp("in_two")
    train(2, directory, *RAGGED, "--max-update 20 --save-interval-updates 10")
    return directory


def assert_same_parameters(a, b):
    assert a["optimizer_history"][-1]["num_updates"] == b["optimizer_history"][-1]["num_updates"] == 20
    assert a["model"].keys() == b["model"].keys()
    for name in a["model"]:
        # Usually bit-equal, but sums in another order may round differently in float32, which Adam amplifies.
        assert_close(a["model"][name], b["model"][name], 1e-5)


def test_two_processes_train_as_one_that_accumulates(train, data_bin, in_two, tmp_path):
    """Also across the ends of epochs, where the second process has no batch for the last update."""
    task = set_up(data_bin).task
    assert len(batches(task, batch_size=32)) % 2 == 1
    assert len(batches(task, batch_size=32)) < 40
    train(1, tmp_path, *RAGGED, "--update-freq 2 --max-update 20")
    assert_same_parameters(checkpoint(in_two), checkpoint(tmp_path))
    # Each of two devices computes half of the FLOPs.
    assert logged_tflops(checkpoint(in_two)) == pytest.approx(logged_tflops(checkpoint(tmp_path)) / 2)


def test_two_processes_with_batches_of_fixed_sizes(train, in_two, tmp_path):
    """``--cuda-graphs`` adds gradients to its own memory, of which legacy_ddp sends the sum of an update at once."""
    train(2, tmp_path, *RAGGED, "--max-update 20 --cuda-graphs --ddp-backend legacy_ddp")
    assert_same_parameters(checkpoint(in_two), checkpoint(tmp_path))


def logged_tflops(state: dict) -> float:
    """Return the 1e12 FLOPs since the first update whose rate was logged, from the meters in a checkpoint."""
    meters = dict(state["extra_state"]["metrics"])["train"]
    (tflops,) = (float(meter["n"]) for _, key, _, meter in meters if key == "tflops")
    assert tflops > 0
    return tflops


@pytest.mark.slow
def test_two_processes_that_accumulate_train_as_one(train, data_bin, tmp_path):
    """Also in the last update of an epoch, where the second process has one batch and the first has two."""
    options = ["--batch-size 36 --required-batch-size-multiple 1 --max-update 20"]
    task = set_up(data_bin).task
    assert len(batches(task, batch_size=36)) % 4 == 3
    assert len(batches(task, batch_size=36)) < 40
    train(2, tmp_path / "two", *options, "--update-freq 2")
    train(1, tmp_path / "one", *options, "--update-freq 4")
    assert_same_parameters(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"))


@pytest.mark.slow
def test_two_processes_freeze_the_encoder_as_one(train, tmp_path):
    """The gradients of a frozen encoder are dropped after data parallel training has exchanged them."""
    options = ["--freeze-encoder-updates 10 --weight-decay 0.1 --max-update 20 --update-freq"]
    train(2, tmp_path / "two", *RAGGED, *options, 2)
    train(1, tmp_path / "one", *RAGGED, *options, 4)
    assert_same_parameters(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"))


@pytest.mark.slow
def test_two_processes_train_as_one_on_shards_of_different_sizes(train, tmp_path):
    """Each epoch reads one shard, and the second process has no batch for its last update. The masking rate moves."""
    options = [*RAGGED, "--max-update 20 --mask-prob 0.1 --mask-prob-end 0.4"]
    shards = make_data(tmp_path / "shards")
    task = set_up(shards).task
    numbers = []
    for epoch in (1, 2):
        task.load_dataset("train", epoch=epoch)
        numbers.append(len(batches(task, batch_size=32, epoch=epoch)))
    assert [number % 2 for number in numbers] == [1, 1]
    assert numbers[0] != numbers[1]
    assert sum(numbers) < 40
    train(2, tmp_path / "two", *options, data=shards)
    train(1, tmp_path / "one", *options, "--update-freq 2", data=shards)
    together, alone = (checkpoint(tmp_path / name) for name in ("two", "one"))
    assert_same_parameters(together, alone)
    assert together["extra_state"]["train_iterator"]["epoch"] == alone["extra_state"]["train_iterator"]["epoch"] > 2


@pytest.mark.slow
def test_a_batch_without_masked_tokens_on_one_process_does_no_harm(train, data_bin, tmp_path):
    """fairseq deals out batches in turn: even ones to one process, odd ones to the other."""
    task = set_up(data_bin, *SPARSE).task
    predicted = [bool(batch["target"].ne(task.dictionary.pad()).any()) for batch in batches(task, batch_size=1)[:40]]
    pairs = set(zip(predicted[::2], predicted[1::2], strict=True))
    assert {(True, False), (False, True)} <= pairs
    train(2, tmp_path / "two", *SPARSE, "--max-update 20")
    train(1, tmp_path / "one", *SPARSE, "--max-update 20 --update-freq 2")
    together, alone = (checkpoint(tmp_path / name) for name in ("two", "one"))
    assert_same_parameters(together, alone)
    assert all(value.isfinite().all() for value in together["model"].values())


@pytest.mark.parametrize(
    ("processes", "update_freq", "told", "assert_same"),
    [
        (2, 1, "@ 10 updates)", assert_same_training_state),
        (1, 2, "resuming with 1 processes instead of 2", assert_same_parameters),
    ],
    ids=["two", "one"],
)
def test_a_run_of_two_processes_resumes(train, in_two, tmp_path, processes, update_freq, told, assert_same):
    """In the middle of an epoch; in two processes bit for bit, in one with the same batches."""
    shutil.copy(in_two / "checkpoint_2_10.pt", tmp_path / "checkpoint_last.pt")
    resumed = train(processes, tmp_path, *RAGGED, "--max-update 20 --update-freq", update_freq)
    assert told in resumed.stdout
    assert_same(checkpoint(in_two), checkpoint(tmp_path))


@pytest.fixture
def endless(data_bin, tmp_path):
    """Start torchrun with two processes. Return it, the two, and the ids of all, data workers included."""
    options = ["--no-save --num-workers 1 --batch-size 1 --max-update", 10**6, "--total-num-update", 10**6]
    program, *command = torchrun_command(2, data_bin, *SETTINGS, *options)
    command = [Path(sys.executable).parent / program, *command]
    env = {**os.environ, **ENVIRONMENT, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}  # a stopped process ignores SIGTERM
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    living = [launcher.pid]
    try:
        wait_for(lambda: "num_updates=20," in (tmp_path / "log").read_text())
        first, second = children(launcher.pid)
        wait_for(lambda: children(first) and children(second))
        living += [first, second, *children(first), *children(second)]
        yield launcher, first, second, living
    finally:
        for pid in filter(is_running, living):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"),
    [("process 1", signal.SIGKILL), ("the launcher", signal.SIGINT)],
)
def test_failure_of_one_process_ends_all(endless, victim, number):
    """Even a process that is stopped."""
    launcher, first, second, living = endless
    os.kill(first, signal.SIGSTOP)
    os.kill(second if victim == "process 1" else launcher.pid, number)
    _, stderr = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert number.name in stderr or f"got signal: {number:d}" in stderr
    wait_for(lambda: not any(map(is_running, living)))


def test_processes_end_with_a_launcher_that_is_killed(endless):
    """torchrun itself would leave them behind."""
    launcher, *_, living = endless
    launcher.kill()
    wait_for(lambda: not any(map(is_running, living[1:])))


def is_running(pid: int) -> bool:
    """Return whether a process exists, and is no zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_process_that_waits_for_a_stopped_one_ends_with_a_message(data_bin, tmp_path):
    """Processes started by hand, as on two machines whose connection is lost: nothing stops the waiting one."""
    endless = ["--no-save --batch-size 1 --max-update", 10**6, "--total-num-update", 10**6, "--ddp-timeout 20"]
    command = [data_bin, *SETTINGS, "--cpu", *endless, "--save-dir", tmp_path]
    logs = [tmp_path / "0", tmp_path / "1"]
    processes = [start_training(command, log, job) for log, job in zip(logs, connected(2), strict=True)]
    try:
        wait_for(lambda: logs[0].exists() and "num_updates=20," in logs[0].read_text())
        os.kill(processes[1].pid, signal.SIGSTOP)
        processes[0].join(120)
        assert processes[0].exitcode == 1
        *_, last = logs[0].read_text().splitlines()
        assert last.startswith("error: lost the connection to another process of this job: Timed out waiting 20000ms")
        assert "(--ddp-timeout)" in last
        assert "Traceback" not in logs[0].read_text()
    finally:
        for process in processes:
            process.kill()
            process.join()
