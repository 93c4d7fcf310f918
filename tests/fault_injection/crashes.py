"""Faults that strike a run: kills, disks, damaged checkpoints, numbers. Each function makes rows of the table.

What a row promises is what is looked at. Most runs are brought to their end afterwards and compared, bit by bit, with
one that nothing happened to.
"""

import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from fairseq import checkpoint_utils

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from tests.fault_injection.damage import damaged
from tests.fault_injection.lives import SETTINGS, Training, difference
from tests.fault_injection.processes import children, obey_permissions
from tests.fault_injection.report import Row
from tests.fault_injection.workplace import Workplace

EQUAL = "the run goes on from its newest checkpoint and ends bit for bit where an undisturbed one ends"


def _compare(training: Training, end: int, reference: Training) -> str | None:
    """Brings a training to its end; what is wrong with that end, or None."""
    return training.finish(end) or difference(training.last, reference.last)


# ------------------------------------------------------------------------------------------------------------- kills


def kills(place: Workplace, times: int) -> Iterator[Row]:
    """SIGKILL in one run, again and again, every other time while a checkpoint is being written."""
    on = "the next start goes on from the newest checkpoint that was complete"
    anywhere = Row("SIGKILL at a random moment of a run (start-up, update, validation, epoch end, shard change)", on)
    saving = Row("SIGKILL while a checkpoint is being written", on)
    training = place.training()
    unproven: list[Row] = []  # the kills that no later start has told of yet
    for number in range(times):
        saved, began = training.saved_updates(), time.time()
        life = training.start(10**6)
        if number % 2:
            _wait_for_saving(training, life, place.random, began)
        else:
            time.sleep(place.random.uniform(0, 4))
        ended = life.is_over()
        life.kill()
        went_on = life.went_on_from()
        if went_on is not None:
            problem = f"went on from update {went_on}, though {saved} was saved" if went_on != saved else None
            while unproven:
                unproven.pop().record(problem)
        row = saving if training.is_saving(began) else anywhere
        if ended:
            row.record(f"ended by itself: {life.last_words()}")
        else:
            unproven.append(row)
    end = training.saved_updates() + 17  # not where it would save
    reference = place.undisturbed(end)
    state = torch.load(reference.last, weights_only=True)  # the run that was killed may not have saved anything yet
    epoch = state["extra_state"]["train_iterator"]["epoch"]
    whole = Row(f"all these kills in one run of {end} updates and {epoch} epochs, two shards in turn", EQUAL)
    problem = _compare(training, end, reference)
    for row in (*unproven, whole):
        row.record(problem)
    yield from (anywhere, saving, whole)


def _wait_for_saving(training: Training, life, generator: random.Random, began: float) -> None:
    time.sleep(generator.uniform(0.5, 3))
    deadline = time.monotonic() + 30
    while not training.is_saving(began) and not life.is_over() and time.monotonic() < deadline:
        time.sleep(0.001)


def killed_process(place: Workplace, times: int) -> Iterator[Row]:
    """One of two processes is killed: the other ends, and the run goes on."""
    row = Row(
        "SIGKILL of one process of two (scripts/launch_cpu.py)",
        "the other ends within a minute, one line tells why, and the run goes on to the end",
    )
    for number in range(times):
        training = place.training()
        first = _launch(place, training, 10**6)
        deadline = time.monotonic() + 120
        while training.saved_updates() < 5 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        ranks = [pid for pid in children(first.pid) if os.getpgid(pid) == pid]
        row.record(_kill_rank(place, training, first, ranks, number))
    yield row


def _kill_rank(place: Workplace, training: Training, launcher, ranks: list[int], number: int) -> str | None:
    if len(ranks) != 2:
        launcher.kill()
        return f"{len(ranks)} processes instead of two: {launcher.communicate()[1][-300:]}"
    os.kill(ranks[number % 2], signal.SIGKILL)
    try:
        _, told = launcher.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        launcher.kill()
        return "still there after a minute"
    if not told.strip().rpartition("\n")[2].startswith("error: process") or launcher.returncode == 0:
        return f"no clear line: {told[-300:]}"
    if any(Path(f"/proc/{pid}").exists() for pid in ranks):
        return "a process was left behind"
    end = training.saved_updates() + 3
    second = _launch(place, training, end)
    try:
        _, told = second.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        second.kill()
        return "going on took more than four minutes"
    if second.returncode or training.saved_updates() != end:
        return f"did not go on to update {end}: {told[-300:]}"
    return None


def _launch(place: Workplace, training: Training, updates: int) -> subprocess.Popen:
    program = [sys.executable, str(PACKAGE.parent / "scripts" / "launch_cpu.py"), "2", "--", place.data]
    options = ["--user-dir", str(PACKAGE), "--save-dir", str(training.directory), "--max-update", str(updates)]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*program, *SETTINGS, "--num-workers", "0", *options], **output)


# ------------------------------------------------------------------------------------------------------------- disks


def full_disk(place: Workplace, times: int) -> Iterator[Row]:
    """The disk is full: a limit on the size of files strikes in the middle of writing, as a full disk does."""
    row = Row("no room on the disk for a checkpoint", f"one line tells, the checkpoints stay; with room again, {EQUAL}")

    def fill(training: Training) -> Callable[[], None]:
        room = int(training.last.stat().st_size * place.random.uniform(0.4, 0.95))
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    for _ in range(times):
        row.record(_struck(place, fill, "cannot save"))
    yield row


def unwritable_directory(place: Workplace, times: int) -> Iterator[Row]:
    """The directory may not be written to, from the start or from some moment on."""
    row = Row(
        "the checkpoints' directory may not be written to, from the start or from some moment on",
        f"one line tells, the checkpoints stay; with permission again, {EQUAL}",
    )

    def forbid(training: Training) -> Callable[[], None]:
        training.directory.chmod(0o555)
        return obey_permissions

    def forbid_later(training: Training) -> Callable[[], None]:
        def strike() -> None:
            obey_permissions()
            _before_saving(lambda: training.directory.chmod(0o555))

        return strike

    faults = ((forbid, "cannot be written to"), (forbid_later, "cannot save"))
    for number in range(times):
        row.record(_struck(place, *faults[number % 2]))
    yield row


def _before_saving(action: Callable[[], None]) -> None:
    """Calls ``action`` before a checkpoint is saved in this process."""
    save = checkpoint_utils.save_checkpoint

    def acting(*args, **kwargs):
        action()
        return save(*args, **kwargs)

    checkpoint_utils.save_checkpoint = acting


def _struck(place: Workplace, fault: Callable[[Training], Callable[[], None]], told: str) -> str | None:
    """What is lost of a run that a fault ends after update 20, and that then comes to update 30 without it, or None.

    Args:
        place: of the run.
        fault: is given the run, and gives what strikes in its next life.
        told: in the line that this life ends with.
    """
    training = place.copy(place.undisturbed(20))
    problem = _stopped(training, fault(training), told)
    training.directory.chmod(stat.S_IRWXU)  # whatever the fault has made of it
    return problem or _compare(training, 30, place.undisturbed(30))


def _stopped(training: Training, fault: Callable[[], None], told: str) -> str | None:
    """A life with a fault has to end with one line, and to leave the checkpoints; what is wrong, or None."""
    before = training.last.read_bytes()
    life = training.start(1000, fault)
    code, words = life.wait(), life.last_words()
    if code != 1 or told not in words:
        return f"exit code {code}, {words}"
    if training.last.read_bytes() != before:
        return "checkpoint_last.pt is another"
    return None


# ------------------------------------------------------------------------------------------------------- checkpoints


def damaged_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """The newest checkpoint, or the two newest names, are damaged while nobody looks."""
    row = Row("checkpoint_last.pt is cut, changed or overwritten, every third time with another one", EQUAL)
    origin, reference = place.undisturbed(20), place.undisturbed(30)
    for number in range(times):
        training = place.copy(origin)
        victims = [training.last, *([max(training.directory.glob("checkpoint_*_20.pt"))] if number % 3 == 0 else [])]
        for victim in victims:
            victim.write_bytes(damaged(victim.read_bytes(), place.random))
        row.record(_compare(training, 30, reference))
    yield row


class _Malicious:
    """Makes a directory when it is unpickled."""

    def __init__(self, proof: Path):
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


def malicious_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """A checkpoint that would run code, in both formats of torch, to go on from or to begin from."""
    row = Row("a checkpoint that runs code when it is unpickled", "one line refuses it, and nothing ran")
    origin = place.undisturbed(5)
    for number in range(times):
        training = place.training()
        proof = training.directory / "it-ran"
        state = torch.load(origin.last, weights_only=True) | {"best": _Malicious(proof)}
        path = training.last
        if number % 2:
            path = training.directory / "pretrained.pt"
            training = place.training("--finetune-from-model", str(path))
        torch.save(state, path, _use_new_zipfile_serialization=number % 4 < 2)
        life = training.start(10)
        code, words = life.wait(), life.last_words()
        is_refused = code == 1 and f"refused {path}" in words and not proof.exists()
        row.record(None if is_refused else f"exit code {code}, {words}, ran: {proof.exists()}")
    yield row


# ----------------------------------------------------------------------------------------------------------- numbers


def divergence(place: Workplace, times: int) -> Iterator[Row]:
    """The loss, or only what comes back from it, is not finite."""
    row = Row(
        "a loss or a gradient that is not finite",
        f"one line tells what to change, the checkpoints stay; when the cause is gone, {EQUAL}",
    )
    for number in range(times):
        factor = (float("nan"), float("inf"))[number % 2]
        row.record(_struck(place, lambda _, factor=factor: lambda: _spoil_loss(factor), "is not finite"))
    yield row


def _spoil_loss(factor: float) -> None:
    forward, calls = MaskedAutoencoderLMCriterion.forward, []

    def spoilt(criterion, model, sample, reduce=True):
        loss, size, logged = forward(criterion, model, sample, reduce)
        calls.extend([None] if model.training else [])
        return (loss * factor if len(calls) > 3 else loss), size, logged

    MaskedAutoencoderLMCriterion.forward = spoilt


FAULTS = (
    (kills, 12, 50),
    (killed_process, 1, 4),
    (full_disk, 2, 10),
    (unwritable_directory, 2, 10),
    (damaged_checkpoints, 6, 50),
    (malicious_checkpoints, 4, 8),
    (divergence, 2, 10),
)
"""Function, times in a quick round, times in a full one."""
