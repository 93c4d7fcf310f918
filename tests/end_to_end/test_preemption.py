"""Trainings that a signal asks to end: they save the update in progress, and resume as if nothing had happened.

Small trainings are forked from this process, see :mod:`tests.fault_injection.training`. They send the signal to
themselves, so that it comes at a certain moment.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches import preemption, processes as process_patches
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from mae_lm_fairseq.utils import signals
from tests.fault_injection.training import (
    SETTINGS,
    TrainingProcess,
    Workplace,
    difference,
    make_data,
    prepare_to_fork,
)
from tests.support import ROOT
from tests.support.processes import ENVIRONMENT, connected, torchrun_command, wait_for

UPDATES = 26
"""Updates of a whole training: more than an epoch, and not a multiple of the interval of checkpoints, which is 5."""
END_OF_EPOCH = 12
"""Update that ends the first epoch."""
BIN = Path(sys.executable).parent
_LOGGED = re.compile(r"num_updates=(\d+),")
SENT = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    prepare_to_fork()
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def place(data, tmp_path) -> Workplace:
    return Workplace(tmp_path / "place", data)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """Return a training of all updates in one process."""
    return Workplace(tmp_path_factory.mktemp("undisturbed"), data).undisturbed(UPDATES)


def within(owner: object, name: str, call: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return a fault that does something within the n-th call of a function, before what the function does."""

    def fault() -> None:
        original, calls = getattr(owner, name), []

        def counted(*args, **kwargs):
            calls.append(None)
            if len(calls) == call:
                act()
            return original(*args, **kwargs)

        mock.patch.object(owner, name, counted).start()

    return fault


def receive(number: int) -> None:
    """Send this process a signal, and wait until it is noted."""
    os.kill(os.getpid(), number)
    wait_for(preemption.signal_received)


def assert_same_end(ended, expected) -> None:
    """Check that two trainings have the same files, with the same content bit by bit, but for times and starts."""
    names = [sorted(path.name for path in training.directory.glob("*")) for training in (ended, expected)]
    assert names[0] == names[1]
    for name in names[0]:
        if not name.endswith(".pt"):
            continue
        paths = ended.directory / name, expected.directory / name
        assert difference(*paths) is None, name
        states = [torch.load(path, weights_only=True)["extra_state"] for path in paths]
        for key in ("val_loss", "best", "patience"):
            assert states[0].get(key) == states[1].get(key), f"{name} {key}"


MOMENTS = {
    "the first update": (Trainer, "train_step", 1, 1),
    "an update": (Trainer, "train_step", 7, 7),
    "the update before a checkpoint": (Trainer, "train_step", 10, 10),
    "the end of an epoch": (Trainer, "train_step", END_OF_EPOCH, END_OF_EPOCH),
    "the last update": (Trainer, "train_step", UPDATES, UPDATES),
    "a validation": (Trainer, "valid_step", 1, 5),
    "a save": (checkpoint_utils, "torch_persistent_save", 1, 6),
}
"""By name: where the signal comes, and the update that is saved."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [SENT[0], *(pytest.param(number, marks=pytest.mark.slow) for number in SENT[1:])])
def test_the_update_in_progress_is_saved(place, undisturbed, moment, number):
    """A validation is abandoned, and made up for when the training resumes."""
    *where, saved = MOMENTS[moment]
    training = place.training()
    process = training.start(UPDATES, within(*where, partial(receive, number)))
    assert process.wait() == 128 + number, process.output()
    assert f"{number.name}: saved update {saved}; the same command resumes" in process.output()
    assert "Traceback" not in process.output()
    assert saved_updates(training.last) == saved
    assert not [*training.directory.glob("*.tmp")]
    assert training.finish(UPDATES) is None
    assert_same_end(training, undisturbed)


def in_first_validation_of_a_start(number: int) -> None:
    within(Trainer, "valid_step", 1, partial(receive, number))()


def test_the_validation_that_is_made_up_for_can_be_abandoned_again(place, undisturbed):
    training = place.training()
    for number, update in ((signal.SIGTERM, 5), (signal.SIGUSR1, 5)):
        process = training.start(UPDATES, partial(in_first_validation_of_a_start, number))
        assert process.wait() == 128 + number, process.output()
        assert saved_updates(training.last) == update
    assert training.finish(UPDATES) is None
    assert_same_end(training, undisturbed)


@pytest.mark.parametrize("number", SENT)
def test_before_the_first_update_there_is_nothing_to_save(place, number):
    training = place.training()
    process = training.start(UPDATES, within(checkpoint_utils, "load_checkpoint", 1, partial(os.kill, 0, number)))
    assert process.wait() == 128 + number
    assert "there is nothing to save" in process.output()
    assert "Traceback" not in process.output()
    assert not [*training.directory.glob("*.pt")]


def test_all_batches_of_an_update_are_used(place):
    from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMTask

    options = ["--update-freq", "3"]
    training, expected = place.training(*options), place.training(*options)
    process = training.start(8, within(MaskedAutoencoderLMTask, "train_step", 11, partial(receive, signal.SIGTERM)))
    assert process.wait() == 128 + signal.SIGTERM
    assert saved_updates(training.last) == 4
    for run in (training, expected):
        assert run.finish(8) is None
    assert_same_end(training, expected)


def test_data_workers_ignore_a_signal_to_the_group(place):
    """As a terminal, Slurm and ``timeout`` send it; ``timeout`` sends it twice."""
    training = place.training()
    process = training.start(10**6)
    wait_for(lambda: process.log.exists() and "num_updates=10," in process.output())
    for _ in range(2):
        os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM, process.output()
    assert "DataLoader worker" not in process.output()
    update = saved_updates(training.last)
    assert f"SIGTERM: saved update {update};" in process.output()
    assert training.finish(update + 3) is None
    assert difference(training.last, place.undisturbed(update + 3).last) is None


def stuck(within_seconds: float) -> None:
    mock.patch.object(signals, "REPEATED_WITHIN", within_seconds).start()
    within(Trainer, "train_step", 7, lambda: time.sleep(10**6))()


def test_a_second_signal_ends_a_training_at_once(place, undisturbed):
    training = place.training()
    process = training.start(UPDATES, partial(stuck, 0.0))
    wait_for(lambda: process.log.exists() and saved_updates(training.last) == 5)
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: "SIGTERM: the update in progress will be saved" in process.output())
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 128 + signal.SIGINT
    # Data workers that lose their parent may write after it.
    assert any(line.startswith("SIGINT: ended without saving") for line in process.output().splitlines())
    assert training.finish(UPDATES) is None
    assert_same_end(training, undisturbed)


@pytest.mark.parametrize("second", SENT[1:])
def test_a_signal_after_the_save_does_not_change_the_exit_code(place, second):
    """Python takes about a second to end."""
    training = place.training()
    begins = within(Trainer, "train_step", 2, partial(receive, signal.SIGTERM))
    ends = within(process_patches, "stop_loading_threads", 1, partial(signal.raise_signal, second))
    process = training.start(UPDATES, partial(both, begins, ends))
    assert process.wait() == 128 + signal.SIGTERM, process.output()
    assert "Traceback" not in process.output()


def test_without_last_checkpoints_one_is_saved_and_does_not_outlive_its_use(place):
    training = place.training("--no-last-checkpoints")
    process = training.start(UPDATES, within(Trainer, "train_step", 7, partial(receive, signal.SIGTERM)))
    assert process.wait() == 128 + signal.SIGTERM
    assert saved_updates(training.last) == 7
    resumed = training.start(UPDATES)
    assert resumed.wait() == 0
    assert resumed.resumed_from() == 7
    again = training.start(UPDATES)
    assert again.wait() == 0
    assert again.resumed_from() == max(map(saved_updates, training.directory.glob("checkpoint_*_*.pt"))) > 7


def test_without_saving_a_training_ends_without_a_file(place):
    training = place.training("--no-save")
    process = training.start(UPDATES, within(Trainer, "train_step", 3, partial(receive, signal.SIGTERM)))
    assert process.wait() == 128 + signal.SIGTERM
    assert "update 3 was not saved (--no-save)" in process.output()
    assert not [*training.directory.iterdir()]


def start_two(training, updates: int, *faults: Callable[[], None] | None) -> list[TrainingProcess]:
    """Start the two processes of a job, each with a fault of its own."""

    def join(variables: dict[str, str], fault: Callable[[], None] | None) -> None:
        os.environ.update(variables)
        if fault is not None:
            fault()

    return [
        training.start(updates, partial(join, variables, fault))
        for variables, fault in zip(connected(2), faults or (None, None), strict=True)
    ]


@pytest.fixture
def two(place):
    """Return a function that trains in two processes, and returns them when they have ended; the test ends both."""
    started = []

    def train(training, updates: int, *faults) -> list[TrainingProcess]:
        processes = start_two(training, updates, *faults)
        started.extend(processes)
        for process in processes:
            process.wait()
        return processes

    yield train
    for process in started:
        process.kill()


@pytest.fixture(scope="module")
def undisturbed_two(data, tmp_path_factory):
    """Return a training of all updates in two processes."""
    training = Workplace(tmp_path_factory.mktemp("undisturbed_two"), data).training()
    assert [process.wait() for process in start_two(training, UPDATES)] == [0, 0]
    return training


def both(*faults: Callable[[], None]) -> None:
    for fault in faults:
        fault()


def check_every_batch() -> None:
    """Let several processes look for a signal after each batch of a validation."""
    mock.patch.object(preemption, "_BATCHES", 1).start()


@pytest.mark.parametrize(
    ("where", "receiver", "saved"),
    [
        ((Trainer, "train_step", 3), 0, (3, 4)),
        ((Trainer, "train_step", 3), 1, (3, 4)),
        ((Trainer, "train_step", END_OF_EPOCH // 2 - 1), 1, (END_OF_EPOCH // 2 - 1, END_OF_EPOCH // 2)),
        ((Trainer, "valid_step", 1), 1, (5, 6)),
        ((checkpoint_utils, "torch_persistent_save", 1), 0, (6, 7)),
    ],
    ids=["first", "second", "end of an epoch", "validation", "save"],
)
def test_a_signal_to_one_of_two_processes_ends_both(place, two, undisturbed_two, where, receiver, saved):
    """After the same update."""
    training = place.training()
    faults = [check_every_batch, check_every_batch]
    faults[receiver] = partial(both, check_every_batch, within(*where, partial(receive, signal.SIGUSR1)))
    processes = two(training, UPDATES, *faults)
    for process in processes:
        assert process.code == 128 + signal.SIGUSR1, process.output()
        assert "Traceback" not in process.output()
    assert saved_updates(training.last) in saved
    assert f"saved update {saved_updates(training.last)};" in processes[0].output()
    assert [process.code for process in two(training, UPDATES)] == [0, 0]
    assert_same_end(training, undisturbed_two)


def test_the_exit_code_is_that_of_the_signal_if_another_process_ends_first(place, two):
    training = place.training()
    ends = within(Trainer, "train_step", 7, partial(receive, signal.SIGTERM))
    is_killed = within(Trainer, "train_step", 7, partial(os.kill, 0, signal.SIGKILL))
    first, second = two(training, UPDATES, ends, is_killed)
    assert (first.code, second.code) == (128 + signal.SIGTERM, -signal.SIGKILL), first.output()
    assert "error: SIGTERM: lost the connection to another process" in first.output()
    assert saved_updates(training.last) == 5


def test_a_second_signal_ends_a_process_that_waits_for_another_one(place):
    """Python calls no handler there."""
    training = place.training()
    hurried = mock.patch.object(signals, "REPEATED_WITHIN", 0.0).start
    processes = start_two(training, 10**6, hurried, None)
    try:
        wait_for(lambda: processes[0].log.exists() and "num_updates=10," in processes[0].output())
        os.kill(processes[1].pid, signal.SIGSTOP)
        os.kill(processes[0].pid, signal.SIGTERM)
        wait_for(lambda: "SIGTERM: the update in progress will be saved" in processes[0].output())
        os.kill(processes[0].pid, signal.SIGTERM)
        assert processes[0].wait() == 128 + signal.SIGTERM
        assert "ended without saving" in processes[0].output()
    finally:
        for process in processes:
            process.kill()


SPAWNING = """
import sys
import fairseq_cli.train
import torch

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 2  # fairseq starts a process for each GPU
    fairseq_cli.train.cli_main()
"""


@pytest.fixture
def launch(data, tmp_path):
    """Return a function that starts a launcher of two processes, which do not survive the test."""
    launched = []

    def launch(launcher: str, log: Path) -> subprocess.Popen:
        options = [data, *SETTINGS, "--user-dir", "mae_lm_fairseq", "--save-dir", tmp_path / "saved"]
        options += ["--max-update", 10**6, "--total-num-update", 10**6]
        program, *command = torchrun_command(2, *options)
        if launcher == "spawn":
            script = tmp_path / "train.py"
            script.write_text(SPAWNING)
            program = "python"
            command = [script, *options, "--distributed-world-size", 2, "--distributed-backend", "gloo"]
            command += ["--distributed-init-method", f"file://{tmp_path}/meet", "--ddp-backend", "legacy_ddp"]
        command = list(map(str, [BIN / program, *command]))
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        with open(log, "w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, env=environment, start_new_session=True
            )
        launched.append(process)
        return process

    yield launch
    for process in launched:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


LAUNCHED = [
    ("torchrun", "launcher", signal.SIGTERM, 1),
    pytest.param("torchrun", "launcher", signal.SIGUSR1, -signal.SIGUSR1, marks=pytest.mark.slow),
    pytest.param("torchrun", "group", signal.SIGTERM, 1, marks=pytest.mark.slow),
    pytest.param("torchrun", "group", signal.SIGUSR1, -signal.SIGUSR1, marks=pytest.mark.slow),
    pytest.param("spawn", "launcher", signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param("spawn", "group", signal.SIGINT, 128 + signal.SIGINT, marks=pytest.mark.slow),
]
"""Who starts two processes, who receives a signal, and the exit code of who has started them. torchrun has its own."""


@pytest.mark.parametrize(("launcher", "receiver", "number", "code"), LAUNCHED)
def test_processes_of_a_launcher_save(launch, tmp_path, launcher, receiver, number, code):
    """torchrun does not handle SIGUSR1; the processes that it leaves behind also save and end."""
    log = tmp_path / "log"
    process = launch(launcher, log)
    wait_for(lambda: "num_updates=20," in log.read_text() or process.poll() is not None, 240)
    os.killpg(process.pid, number) if receiver == "group" else process.send_signal(number)
    assert process.wait(240) == code, log.read_text()
    wait_for(lambda: "saved update" in log.read_text())
    update = saved_updates(tmp_path / "saved/checkpoint_last.pt")
    assert re.search(rf"SIG\w+: saved update {update}; the same command resumes", log.read_text())
    assert max(map(int, _LOGGED.findall(log.read_text()))) <= update
    wait_for(lambda: not [other for other in psutil.process_iter() if is_of_session(other, process.pid)])


@pytest.mark.slow
@pytest.mark.parametrize("number", SENT)
@pytest.mark.parametrize("started", [1, 2])
def test_processes_that_are_being_spawned_end(launch, tmp_path, number, started):
    """A signal waits until they have imported their modules."""
    log = tmp_path / "log"
    process = launch("spawn", log)

    def spawned() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "multiprocessing.spawn" in " ".join(child.cmdline())]

    wait_for(lambda: len(spawned()) >= started)
    os.killpg(process.pid, number)
    assert process.wait(240) == 128 + number, log.read_text()
    assert f"{number.name}: training has not begun, so there is nothing to save" in log.read_text()
    assert "Traceback" not in log.read_text()
    wait_for(lambda: not [other for other in psutil.process_iter() if is_of_session(other, process.pid)])


def is_of_session(process: psutil.Process, session: int) -> bool:
    """Return whether a process lives in a session."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", SENT[:2])
@pytest.mark.parametrize("seed", range(10))
def test_at_a_random_moment_at_most_the_update_in_progress_is_lost(place, processes, number, seed):
    generator = random.Random(f"{processes} {number} {seed}")
    training, expected = place.training(), place.training()
    start = start_two if processes == 2 else lambda training, updates: [training.start(updates)]
    seconds, logged = generator.uniform(0, 3), 0
    started = start(training, 10**4)
    try:
        time.sleep(seconds)
        for process in started if generator.random() < 0.5 else [generator.choice(started)]:
            os.killpg(process.pid, number)
            logged = max(logged, *map(int, _LOGGED.findall(process.output())), 0)
        codes = [process.wait() for process in started]
        outputs = "".join(process.output() for process in started)
        has_begun = "there is nothing to save" not in outputs
        assert codes[0] == 128 + number or not has_begun, outputs
        if has_begun:
            assert codes == [128 + number] * processes, outputs
            assert saved_updates(training.last) >= logged
        assert "Traceback" not in outputs
        end = training.saved_updates() + 7
        for run in (training, expected):
            started = start(run, end)
            assert [process.wait() for process in started] == [0] * processes
        assert_same_end(training, expected)
    finally:
        for process in started:
            process.kill()
