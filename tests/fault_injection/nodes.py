"""Faults of training on two nodes: killed ranks, failing nodes, a dead link.

The nodes share the directory of the checkpoints. After the faults, training is finished and compared, bit by bit, with
an undisturbed run on two nodes.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import SETTINGS, Workplace, difference
from tests.support.nodes import TORCHRUN, Node, two_nodes
from tests.support.processes import wait_for

EQUAL = "training resumes from the newest checkpoint and ends bit for bit like an undisturbed run on two nodes"
SECONDS = 240
"""Time limit for anything that is waited for, generous for a loaded machine."""
_FORGET_SECONDS = 20
"""Longer than the rendezvous keeps a silent node. Until then it takes a ``torchrun`` with the same host name and
process id, as here and in containers, for the one that was killed."""
_RESUMED = re.compile(r"Loaded checkpoint .* @ (\d+) updates\)")
_TIMED_OUT = "error: lost the connection to another process of this job: Timed out waiting {}000ms"


class TwoNodeRun:
    """Training with a rank on each of two nodes.

    Args:
        nodes: the nodes.
        data: data argument of ``fairseq-train``.
        directory: for the checkpoints; the log of both nodes goes beside it.
        options: arguments of ``fairseq-train``.
    """

    def __init__(self, nodes: tuple[Node, Node], data: str, directory: Path, *options: object):
        self._nodes, self._log = nodes, directory.with_suffix(".log")
        self.last = directory / "checkpoint_last.pt"
        elastic = ["--nnodes", 2, "--max-restarts", 100, "-m", "fairseq_cli.train"]
        saving = ["--user-dir", PACKAGE, "--save-dir", directory]
        self._command = [*TORCHRUN, *elastic, data, *SETTINGS, *saving, "--log-interval", 1, *options]
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
        return [int(updates) for updates in _RESUMED.findall(self.output())]

    def wait_for_updates(self, number: int) -> None:
        """Wait until that many more updates are logged and a checkpoint exists."""
        logged = self.output().count("num_updates=")
        self.wait(lambda: self.output().count("num_updates=") >= logged + number and self.last.exists())

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


def kills(place: Workplace, times: int) -> Iterator[Row]:
    """Send SIGKILL to a random rank of one run repeatedly; ``torchrun`` restarts both."""
    each = Row("SIGKILL of one of two ranks on two nodes at a random moment", "both restart from the newest checkpoint")
    updates = 40 * times + 20
    all_kills = Row(f"all these kills in a single run of {updates} updates", EQUAL)
    options = ["--max-update", updates]
    with two_nodes() as nodes:
        run = TwoNodeRun(nodes, place.data, place.directory / "killed", *options)
        for number in range(1, times + 1):
            run.wait_for_updates(place.random.randint(1, 20))
            time.sleep(place.random.uniform(0, 0.3))
            saved = saved_updates(run.last)
            for rank in place.random.choice(nodes).ranks():
                os.kill(rank, signal.SIGKILL)
            each.record(run.wait_for_resume(number, saved))
        all_kills.record(run.finish(_undisturbed(place, *options)))
    yield from (each, all_kills)


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


def dead_link(place: Workplace, times: int) -> Iterator[Row]:
    """Take the link between the nodes down, and up again when both ranks have ended.

    Every other time the second node is started anew before. Otherwise its ``torchrun``, which has waited for the one
    that hosts the rendezvous, restarts its rank.
    """
    row = Row(
        "the link between two nodes goes down until both ranks have ended",
        f"they end with an error message after --ddp-timeout; {EQUAL}",
    )
    seconds = 20
    options = ["--max-update", 60, "--ddp-timeout", seconds]
    reference = _undisturbed(place, *options)
    for number in range(times):
        with two_nodes() as nodes:
            run = TwoNodeRun(nodes, place.data, place.directory / f"link-{number}", *options)
            run.wait_for_updates(place.random.randint(1, 20))
            nodes[1].set_link("down")
            began = time.monotonic()
            run.wait(lambda run=run: run.output().count(_TIMED_OUT.format(seconds)) == 2)
            waited = time.monotonic() - began
            if number % 2:
                run.kill(nodes[1])
                time.sleep(_FORGET_SECONDS)
                run.start_again()
            nodes[1].set_link("up")
            row.record(run.finish(reference) or (f"waited {waited:.0f} seconds" if waited < seconds else None))
    yield row


FAULTS = [Fault(kills, 2, 4, 10), Fault(failing_nodes, 2, 2, 4), Fault(dead_link, 2, 2, 2)]
