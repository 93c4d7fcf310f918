"""Faults injected into a training run: kills, full disks, damaged checkpoints, non-finite numbers.

Each function yields rows of the table. After most faults the training is finished and compared, bit by bit, with an
undisturbed one. Only torch and fairseq are needed: scripts/test_environments.sh has no hypothesis.
"""

import os
import random
import resource
import stat
import time
from collections.abc import Callable, Iterator

import torch
from fairseq import checkpoint_utils

from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from tests.fault_injection.processes import obey_permissions
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import Training, TrainingProcess, Workplace, difference
from tests.support.pickles import Calls

EQUAL = "the run resumes from its newest checkpoint and ends bit for bit like an undisturbed run"


def _compare(training: Training, end: int, reference: Training) -> str | None:
    """Finish a training; return how its final state differs from the reference, or None."""
    return training.finish(end) or difference(training.last, reference.last)


# ------------------------------------------------------------------------------------------------------------- kills


def kills(place: Workplace, times: int) -> Iterator[Row]:
    """Send SIGKILL to one run repeatedly, every other time while it writes a checkpoint.

    A kill counts as survived when a later process logs that it resumed at the right update, or when the run ends as
    the reference does.
    """
    on = "the next start resumes from the newest complete checkpoint"
    anywhere = Row("SIGKILL at a random moment of a run (start-up, update, validation, epoch end, shard change)", on)
    saving = Row("SIGKILL while a checkpoint is being written", on)
    training = place.training()
    unproven: list[Row] = []  # kills after which no process has resumed yet
    for number in range(times):
        saved, began = training.saved_updates(), time.time()
        process = training.start(10**6)
        if number % 2:
            _wait_for_saving(training, process, place.random, began)
        else:
            time.sleep(place.random.uniform(0, 4))
        ended = process.has_ended()
        process.kill()
        resumed = process.resumed_from()
        if resumed is not None:
            problem = f"resumed from update {resumed}, though {saved} was saved" if resumed != saved else None
            while unproven:
                unproven.pop().record(problem)
        row = saving if training.is_saving(began) else anywhere
        if ended:
            row.record(f"ended by itself: {process.final_error()}")
        else:
            unproven.append(row)
    end = training.saved_updates() + 17  # not a multiple of the checkpoint interval
    reference = place.undisturbed(end)
    state = torch.load(reference.last, weights_only=True)  # the killed run may not have saved anything
    epoch = state["extra_state"]["train_iterator"]["epoch"]
    all_kills = Row(f"all these kills in a single run of {end} updates and {epoch} epochs, two shards in turn", EQUAL)
    problem = _compare(training, end, reference)
    for row in (*unproven, all_kills):
        row.record(problem)
    yield from (anywhere, saving, all_kills)


def _wait_for_saving(training: Training, process: TrainingProcess, generator: random.Random, began: float) -> None:
    time.sleep(generator.uniform(0.5, 3))
    deadline = time.monotonic() + 120
    while not training.is_saving(began) and not process.has_ended() and time.monotonic() < deadline:
        time.sleep(0.001)


# ------------------------------------------------------------------------------------------------------------- disks


def full_disk(place: Workplace, times: int) -> Iterator[Row]:
    """Fill the disk, simulated by a limit on the size of files, which also interrupts a write midway."""
    row = Row(
        "no space on the disk for a checkpoint",
        f"an error message, the checkpoints stay; with free space again, {EQUAL}",
    )

    def fill(training: Training) -> Callable[[], None]:
        room = int(training.last.stat().st_size * place.random.uniform(0.4, 0.95))
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    for _ in range(times):
        row.record(_try_fault(place, fill, "cannot save"))
    yield row


def unwritable_directory(place: Workplace, times: int) -> Iterator[Row]:
    """Make the checkpoint directory unwritable during the run."""
    row = Row(
        "the checkpoint directory is not writable any more",
        f"an error message, the checkpoints stay; with permission again, {EQUAL}",
    )

    def forbid(training: Training) -> Callable[[], None]:
        def strike() -> None:
            obey_permissions()
            _before_saving(lambda: training.directory.chmod(0o555))

        return strike

    for _ in range(times):
        row.record(_try_fault(place, forbid, "cannot save"))
    yield row


def _before_saving(action: Callable[[], None]) -> None:
    """Call ``action`` before each checkpoint that this process saves."""
    save = checkpoint_utils.save_checkpoint

    def acting(*args, **kwargs):
        action()
        return save(*args, **kwargs)

    checkpoint_utils.save_checkpoint = acting


def _try_fault(place: Workplace, fault: Callable[[Training], Callable[[], None]], message: str) -> str | None:
    """End a run with a fault after update 20, then finish it without the fault; return what was lost, or None.

    Args:
        place: directory of the run.
        fault: takes the training and returns a function that its next process calls before it trains.
        message: part of the error message that this process must end with; the checkpoints must not change.
    """
    training = place.copy(place.undisturbed(20))
    before = training.last.read_bytes()
    process = training.start(1000, fault(training))
    code, error = process.wait(), process.final_error()
    training.directory.chmod(stat.S_IRWXU)  # the fault may have changed it
    if code != 1 or message not in error:
        return f"exit code {code}, {error}"
    if training.last.read_bytes() != before:
        return "checkpoint_last.pt has changed"
    return _compare(training, 30, place.undisturbed(30))


# ------------------------------------------------------------------------------------------------------- checkpoints


def damaged_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Damage the newest checkpoint between two processes, every third time under both of its names."""
    row = Row("checkpoint_last.pt is cut, changed or overwritten, every third time with another one", EQUAL)
    origin, reference = place.undisturbed(20), place.undisturbed(30)
    for number in range(times):
        training = place.copy(origin)
        victims = [training.last, *([max(training.directory.glob("checkpoint_*_20.pt"))] if number % 3 == 0 else [])]
        for victim in victims:
            victim.write_bytes(_damaged(victim.read_bytes(), place.random))
        row.record(_compare(training, 30, reference))
    yield row


def _damaged(content: bytes, generator: random.Random) -> bytes:
    """Truncate the content, flip one bit, overwrite a range, or replace everything.

    hypothesis is not used because each case is a training, which is too slow for shrinking.
    """
    place, length = generator.randrange(len(content)), generator.randint(1, 5000)
    flipped = bytes([content[place] ^ 1 << generator.randrange(8)])
    damage = generator.choice([b"", flipped, generator.randbytes(length), None])
    if damage is None:
        return generator.randbytes(len(content))
    return content[:place] + (damage + content[place + len(damage) :] if damage else b"")


def malicious_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Resume from or fine-tune a checkpoint that would execute code, in both of torch's file formats."""
    row = Row(
        "a checkpoint that runs code when it is unpickled", "it is refused with an error message, and nothing in it ran"
    )
    origin = place.undisturbed(5)
    for number in range(times):
        training = place.training()
        proof = training.directory / "it-ran"
        state = torch.load(origin.last, weights_only=True) | {"best": Calls(os.mkdir, str(proof))}
        path = training.last
        if number % 2:
            path = training.directory / "pretrained.pt"
            training = place.training("--finetune-from-model", str(path))
        torch.save(state, path, _use_new_zipfile_serialization=number % 4 < 2)
        process = training.start(10)
        code, error = process.wait(), process.final_error()
        is_refused = code == 1 and f"refused {path}" in error and not proof.exists()
        row.record(None if is_refused else f"exit code {code}, {error}, ran: {proof.exists()}")
    yield row


# ----------------------------------------------------------------------------------------------------------- numbers


def divergence(place: Workplace, times: int) -> Iterator[Row]:
    """Make the loss NaN or infinite."""
    row = Row(
        "a loss or a gradient that is not finite",
        f"the error message says what to change, the checkpoints stay; without the cause, {EQUAL}",
    )
    for number in range(times):
        factor = (float("nan"), float("inf"))[number % 2]
        row.record(_try_fault(place, lambda _, factor=factor: lambda: _spoil_loss(factor), "failed: "))
    yield row


def _spoil_loss(factor: float) -> None:
    forward, calls = MaskedAutoencoderLMCriterion.forward, []

    def spoilt(criterion, model, sample, reduce=True):
        loss, size, logged = forward(criterion, model, sample, reduce)
        calls.extend([None] if model.training else [])
        return (loss * factor if len(calls) > 3 else loss), size, logged

    MaskedAutoencoderLMCriterion.forward = spoilt


FAULTS = (
    Fault(kills, 2, 12, 50),
    Fault(full_disk, 1, 2, 10),
    Fault(unwritable_directory, 1, 2, 10),
    Fault(damaged_checkpoints, 2, 6, 50),
    Fault(malicious_checkpoints, 2, 4, 8),
    Fault(divergence, 2, 2, 10),
)
