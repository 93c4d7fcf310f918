"""Faults of training on two nodes: killed ranks, failing nodes, a dead link, a full disk.

The nodes share the directory of the checkpoints. After the faults, training is finished and compared, bit by bit, with
an undisturbed run on two nodes.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import RESUMED, SETTINGS, Workplace, difference
from tests.support.nodes import TORCHRUN, Node, two_nodes
from tests.support.processes import wait_for

EQUAL = "training resumes from the newest checkpoint and ends bit for bit like an undisturbed run on two nodes"
SECONDS = 240
"""Time limit for anything that is waited for, generous for a loaded machine."""
_FORGET_SECONDS = 20
"""Longer than the rendezvous keeps a silent node. Until then it takes a ``torchrun`` with the same host name and
process id, as here and in containers, for the one that was killed."""
_TIMED_OUT = "error: lost the connection to another process of this job: Timed out waiting {}000ms"
_NOT_SAVED = "error: cannot save"
_TIMEOUT = 20
"""``--ddp-timeout`` where a link goes down, in seconds."""


class TwoNodeRun:
    """Training with a rank on each of two nodes.

    Args:
        nodes: the nodes.
        data: data argument of ``fairseq-train``.
        directory: for the checkpoints; the log of both nodes goes beside it.
        options: arguments of ``fairseq-train``.
        checkpoints: directory for the checkpoints, if it is another.
    """

    def __init__(
        self, nodes: tuple[Node, Node], data: str, directory: Path, *options: object, checkpoints: Path | None = None
    ):
        self._nodes, self._log = nodes, directory.with_suffix(".log")
        # Not in the directory of a test, whose path is too long for the sockets of data workers.
        self._temporary = tempfile.TemporaryDirectory(prefix="nodes-")
        self.temporary = Path(self._temporary.name)
        self.last = (checkpoints or directory) / "checkpoint_last.pt"
        elastic = ["--nnodes", 2, "--max-restarts", 1000, "-m", "fairseq_cli.train"]
        saving = ["--user-dir", PACKAGE, "--save-dir", self.last.parent]
        self._command = ["env", f"TMPDIR={self.temporary}", *TORCHRUN, *elastic, data, *SETTINGS, *saving]
        self._command += ["--log-interval", 1, *options]
        self.torchruns = [self._start(node) for node in nodes]

    def _start(self, node: Node):
        return node.start(*self._command, log=self._log)

    def start_again(self) -> None:
        """Start ``torchrun`` again on each node where it has ended."""
        for node in self._nodes:
            if self.torchruns[node.number].poll() is not None:
                self.torchruns[node.number] = self._start(node)

    def kill(self, node: Node) -> None:
        """Kill ``torchrun`` and its rank on a node."""
        self.torchruns[node.number].kill()
        self.torchruns[node.number].wait()

    def output(self) -> str:
        """Return what both nodes have printed."""
        return self._log.read_text(errors="replace")

    def resumes(self) -> list[int]:
        """Return the updates that the ranks have resumed from so far."""
        return [int(updates) for updates in RESUMED.findall(self.output())]

    def wait_for_updates(self, number: int) -> None:
        """Wait until that many more updates are logged and a checkpoint exists."""
        logged = self.output().count("num_updates=")
        self.wait(lambda: self.output().count("num_updates=") >= logged + number and self.last.exists())

    def disturb(self, fault: Callable[[], None]) -> str | None:
        """Call ``fault`` and wait until the run has resumed once more; return what went wrong, or None."""
        resumed, saved = len(self.resumes()), saved_updates(self.last)
        fault()
        return self.wait_for_resume(resumed + 1, saved)

    def wait_for_message(self, message: str, number: int) -> None:
        """Wait until a message has appeared that many times more."""
        before = self.output().count(message)
        self.wait(lambda: self.output().count(message) >= before + number)

    def wait_for_resume(self, number: int, least: int) -> str | None:
        """Wait until the run has resumed that often; return what went wrong, or None.

        Args:
            number: number of times.
            least: smallest update to resume from, this last time.
        """
        self.wait(lambda: len(self.resumes()) >= number)
        if len(self.resumes()) < number:
            return f"did not resume: {self.output()[-300:]}"
        updates = self.resumes()[number - 1]
        return f"resumed from update {updates}, though {least} was saved" if updates < least else None

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds or ``torchrun`` has ended on a node."""
        wait_for(lambda: condition() or any(torchrun.poll() is not None for torchrun in self.torchruns), SECONDS)

    def finish(self, reference: "TwoNodeRun | None" = None) -> str | None:
        """Wait until both nodes have finished; return what went wrong or differs from the reference, or None."""
        codes = [torchrun.wait(SECONDS) for torchrun in self.torchruns]
        if codes != [0, 0]:
            return f"torchrun ended with exit codes {codes}: {self.output()[-300:]}"
        return reference and difference(self.last, reference.last)


def _undisturbed(place: Workplace, *options: object) -> TwoNodeRun:
    with two_nodes() as nodes:
        run = TwoNodeRun(nodes, place.data, place.directory / "undisturbed", *options)
        problem = run.finish()
    if problem is not None:
        raise RuntimeError(f"the undisturbed run failed: {problem}")
    return run


def soak(place: Workplace, times: int) -> Iterator[Row]:
    """Send SIGKILL to a random rank of one long run repeatedly; twice in ten, also cut the link or fill the disk."""
    updates = 60 * times
    options = ["--max-update", updates, "--ddp-timeout", _TIMEOUT]
    on = "both ranks restart from the newest checkpoint"
    kills = Row("SIGKILL of one of two ranks on two nodes at a random moment", on)
    links = Row("the link between them goes down until both ranks have ended, and comes back", on)
    disks = Row("the disk that they save to is full until saving has failed", on)
    with two_nodes() as nodes:
        run = TwoNodeRun(nodes, place.data, place.directory / "soak", *options, checkpoints=nodes[0].disk / "run")
        for number in range(times):
            run.wait_for_updates(place.random.randint(1, 20))
            time.sleep(place.random.uniform(0, 0.3))
            kills.record(run.disturb(lambda: _kill_ranks(place.random.choice(nodes))))
            if number % 10 == 1:
                run.wait_for_updates(place.random.randint(1, 20))
                links.record(run.disturb(lambda: _cut_link(nodes, run)))
            if number % 10 == 2:
                run.wait_for_updates(place.random.randint(1, 20))
                disks.record(run.disturb(lambda: _fill_disk(nodes[0].disk, run, place.random.uniform(0.1, 0.9))))
        reference = _undisturbed(place, *options)
        whole = Row(f"all of it in one run of {updates:,} updates", f"{EQUAL}; no other file is left")
        whole.record(run.finish(reference) or _left_over(run, reference))
    yield from (kills, links, disks, whole)


def _kill_ranks(node: Node) -> None:
    for rank in node.ranks():
        os.kill(rank, signal.SIGKILL)


def _cut_link(nodes: tuple[Node, Node], run: TwoNodeRun) -> None:
    nodes[1].set_link("down")
    run.wait_for_message(_TIMED_OUT.format(_TIMEOUT), 2)
    nodes[1].set_link("up")


def _fill_disk(disk: Path, run: TwoNodeRun, room: float) -> None:
    """Leave ``room`` of a checkpoint's size until a checkpoint could not be saved."""
    filler = disk / "filler"
    with open(filler, "wb") as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        os.posix_fallocate(file.fileno(), 0, free - int(run.last.stat().st_size * room))
    run.wait_for_message(_NOT_SAVED, 1)
    filler.unlink()


def _left_over(run: TwoNodeRun, reference: TwoNodeRun) -> str | None:
    """Return the files that a run has left and the reference has not, or None.

    A process that is killed leaves empty directories and its sockets.
    """
    names, expected = ({path.name for path in training.last.parent.iterdir()} for training in (run, reference))
    files = sorted(names ^ expected) + [str(path) for path in run.temporary.rglob("*") if path.is_file()]
    return f"left over: {files}" if files else None


def failing_nodes(place: Workplace, times: int) -> Iterator[Row]:
    """Kill everything on a node, every other time on the one that hosts the rendezvous, and start it again."""
    row = Row("one of two nodes fails and comes back, every other time the one that hosts the rendezvous", EQUAL)
    options = ["--max-update", 60 * times]
    with two_nodes() as nodes:
        run = TwoNodeRun(nodes, place.data, place.directory / "failing", *options)
        problems = []
        for number in range(1, times + 1):
            run.wait_for_updates(place.random.randint(1, 20))
            saved = saved_updates(run.last)
            run.kill(nodes[number % 2])
            if number % 2:
                time.sleep(_FORGET_SECONDS)
            else:
                run.torchruns[1].wait(SECONDS)  # it ends with the rendezvous
            run.start_again()
            problems.append(run.wait_for_resume(number, saved))
        end = run.finish(_undisturbed(place, *options))
    for problem in problems:
        row.record(problem or end)
    yield row


FAULTS = [Fault(soak, 10, 10, 50), Fault(failing_nodes, 2, 2, 4)]
