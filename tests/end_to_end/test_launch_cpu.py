"""Training with several processes on one CPU: scripts/launch_cpu.py, and torchrun, which is refused without a GPU."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.end_to_end.test_pretrain import assert_one_line, assert_same_training_state, checkpoint
from tests.fault_injection.training import make_data
from tests.support import ROOT
from tests.support.processes import wait_for
from tests.support.training import RECIPE, batches, set_up

SETTINGS = [*RECIPE, "--arch", "mae_lm_tiny", "--dropout", 0, "--attention-dropout", 0]
SETTINGS += ["--user-dir", "mae_lm_fairseq", "--num-workers", 0, "--no-epoch-checkpoints", "--disable-validation"]
RAGGED = ["--batch-size", 32]
SPARSE = ["--batch-size", 1, "--mask-prob", 0.02]


@pytest.fixture(scope="module")
def train(fairseq_train, launch_cpu, data_bin):
    """Return ``train(processes, save_dir, *options)``, which trains and checks the exit code."""

    def run(processes, save_dir, *options, data=data_bin):
        arguments = [data, *SETTINGS, "--save-dir", save_dir, *options]
        done = fairseq_train(*arguments) if processes == 1 else launch_cpu(processes, "--", *arguments)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def in_two(train, tmp_path_factory):
    """Return the directory of a run of 20 updates in two processes, with checkpoints after updates 10 and 20."""
    directory = tmp_path_factory.mktemp("in_two")
    train(2, directory, *RAGGED, "--max-update", 20, "--save-interval-updates", 10)
    return directory


def assert_same_parameters(a, b):
    assert a["optimizer_history"][-1]["num_updates"] == b["optimizer_history"][-1]["num_updates"] == 20
    assert a["model"].keys() == b["model"].keys()
    for name in a["model"]:
        # Usually bit-equal, but sums in another order may round differently in float32, which Adam amplifies.
        torch.testing.assert_close(a["model"][name], b["model"][name], rtol=0, atol=1e-5)


def test_two_processes_train_as_one_that_accumulates(train, data_bin, in_two, tmp_path):
    """Also across the ends of epochs, where the second process has no batch for the last update."""
    _, task, _, _ = set_up(data_bin)
    task.load_dataset("train")
    assert len(batches(task, batch_size=32)) % 2 == 1
    assert len(batches(task, batch_size=32)) < 40
    train(1, tmp_path, *RAGGED, "--update-freq", 2, "--max-update", 20)
    assert_same_parameters(checkpoint(in_two), checkpoint(tmp_path))


@pytest.mark.slow
def test_two_processes_freeze_the_encoder_as_one(train, tmp_path):
    """The gradients of a frozen encoder are dropped after data parallel training has exchanged them."""
    options = ["--freeze-encoder-updates", 10, "--weight-decay", 0.1, "--max-update", 20, "--update-freq"]
    train(2, tmp_path / "two", *RAGGED, *options, 2)
    train(1, tmp_path / "one", *RAGGED, *options, 4)
    assert_same_parameters(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"))


def test_two_processes_train_as_one_on_shards_of_different_sizes(train, tmp_path):
    """Each epoch reads one shard, and the second process has no batch for its last update."""
    shards = make_data(tmp_path / "shards")
    _, task, _, _ = set_up(shards)
    numbers = []
    for epoch in (1, 2):
        task.load_dataset("train", epoch=epoch)
        numbers.append(len(batches(task, batch_size=32, epoch=epoch)))
    assert [number % 2 for number in numbers] == [1, 1]
    assert numbers[0] != numbers[1]
    assert sum(numbers) < 40
    train(2, tmp_path / "two", *RAGGED, "--max-update", 20, data=shards)
    train(1, tmp_path / "one", *RAGGED, "--max-update", 20, "--update-freq", 2, data=shards)
    two, one = (checkpoint(tmp_path / name) for name in ("two", "one"))
    assert_same_parameters(two, one)
    assert two["extra_state"]["train_iterator"]["epoch"] == one["extra_state"]["train_iterator"]["epoch"] > 2


def test_effective_ranks_are_measured_once_and_change_nothing(train, in_two, tmp_path):
    done = train(2, tmp_path, *RAGGED, "--max-update", 20, "--effective-rank-interval", 10)
    printed = done.stdout + done.stderr
    assert [printed.count(f"effective ranks after {updates} updates") for updates in (10, 20)] == [1, 1]
    assert_same_training_state(checkpoint(in_two), checkpoint(tmp_path))


def test_a_batch_without_masked_tokens_on_one_process_does_no_harm(train, data_bin, tmp_path):
    """fairseq deals out batches in turn: even ones to one process, odd ones to the other."""
    _, task, _, _ = set_up(data_bin, *SPARSE)
    task.load_dataset("train")
    predicted = [bool(batch["target"].ne(task.dictionary.pad()).any()) for batch in batches(task, batch_size=1)[:40]]
    pairs = set(zip(predicted[::2], predicted[1::2], strict=True))
    assert {(True, False), (False, True)} <= pairs
    train(2, tmp_path / "two", *SPARSE, "--max-update", 20)
    train(1, tmp_path / "one", *SPARSE, "--max-update", 20, "--update-freq", 2)
    two, one = (checkpoint(tmp_path / name) for name in ("two", "one"))
    assert_same_parameters(two, one)
    assert all(value.isfinite().all() for value in two["model"].values())


def test_two_processes_resume(train, in_two, tmp_path):
    """Within an epoch, bit for bit."""
    shutil.copy(in_two / "checkpoint_2_10.pt", tmp_path / "checkpoint_last.pt")
    resumed = train(2, tmp_path, *RAGGED, "--max-update", 20)
    assert "@ 10 updates)" in resumed.stdout
    assert_same_training_state(checkpoint(in_two), checkpoint(tmp_path))


def test_one_process_resumes_a_run_of_two(train, in_two, tmp_path):
    """In the middle of an epoch, with the same batches and therefore the same final weights."""
    shutil.copy(in_two / "checkpoint_2_10.pt", tmp_path / "checkpoint_last.pt")
    resumed = train(1, tmp_path, *RAGGED, "--update-freq", 2, "--max-update", 20)
    assert "resuming with 1 processes instead of 2; 0 batches are repeated" in resumed.stdout
    assert_same_parameters(checkpoint(in_two), checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("victim", "number", "expected"),
    [
        ("process 1", signal.SIGKILL, "error: process 1 was killed (SIGKILL)"),
        ("the launcher", signal.SIGINT, "error: interrupted by SIGINT"),
    ],
)
def test_failure_of_one_process_ends_all(data_bin, tmp_path, victim, number, expected):
    """Even a process that is stopped, and the data workers of all processes."""
    command = [
        sys.executable,
        ROOT / "scripts" / "launch_cpu.py",
        2,
        "--",
        data_bin,
        *SETTINGS,
        "--no-save",
        "--save-dir",
        tmp_path,
    ]
    command += ["--num-workers", 1, "--batch-size", 1, "--max-update", 10**6, "--total-num-update", 10**6]
    with open(tmp_path / "log", "w") as log:
        launcher = subprocess.Popen(
            list(map(str, command)), stdout=log, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
    try:
        wait_for(lambda: "num_updates=20," in (tmp_path / "log").read_text())
        wait_for(lambda: len(with_workers(launcher.pid)) == 2)
        first, second = with_workers(launcher.pid)
        os.kill(first, signal.SIGSTOP)
        os.kill(second if victim == "process 1" else launcher.pid, number)
        _, stderr = launcher.communicate(timeout=120)
        assert launcher.returncode == 1
        assert stderr.splitlines()[-1].startswith(expected), stderr
        wait_for(lambda: not living(launcher.pid))
    finally:
        for pid in living(launcher.pid):
            os.kill(pid, signal.SIGKILL)


def living(session: int) -> dict[int, int]:
    """Return the ids of the live processes of a session, with their process groups."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended in the meantime
            state, _, group, its_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found[int(path.parent.name)] = int(group)
    return found


def with_workers(session: int) -> list[int]:
    """Return the ids of the training processes in starting order; each leads a group with its data workers."""
    processes = living(session)
    return sorted({group for pid, group in processes.items() if pid != group} & processes.keys() - {session})


def test_errors_are_reported_once(launch_cpu, tmp_path):
    """Both processes find that the data is missing."""
    done = launch_cpu(2, "--", tmp_path / "nowhere", *SETTINGS, "--save-dir", tmp_path)
    assert done.returncode == 1
    assert_one_line(done, "nowhere")
    assert done.stderr.count("error: ") == 1


def test_torchrun_without_a_gpu_is_refused(run_cli, data_bin, tmp_path):
    program = Path(sys.executable).parent / "fairseq-train"
    start = ["torchrun", "--nproc-per-node", 2, program, data_bin, *SETTINGS]
    done = run_cli([*start, "--save-dir", tmp_path / "saved", "--max-update", 1], env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode != 0
    assert "start python -m mae_lm_fairseq.recipes.launch_cpu 2 --" in done.stderr
    assert not (tmp_path / "saved").exists()
