"""Two nodes on one machine: namespaces with a network of their own, joined by a virtual cable.

A node has a host name (``node0``, ``node1``), a loopback, and one interface, ``eth0``, that reaches the other node and
nothing else. Both see this machine's files, and share a small disk that nothing else uses. The kernel removes a
namespace with its last process, so nothing stays behind however this process ends. Root is needed only on systems that
do not let users make user namespaces.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection.processes import children
from tests.support import ROOT, words_of

# Without the first variable, a new torchrun cannot join one that has been running since an earlier rendezvous. torchrun
# sets the second one only if it starts several processes.
TORCHRUN = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "OMP_NUM_THREADS=1"]
TORCHRUN += [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 1]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500"]
"""The command to start on each node, without ``--nnodes`` and the program."""

_NAMESPACES = ["--net", "--uts", "--mount"]
_DIES_WITH_THIS = ["setpriv", "--pdeathsig", "KILL"]
_DISK = """
mount -t tmpfs -o size=32m none /mnt && printf '127.0.0.1 localhost\n10.0.0.1 node0\n10.0.0.2 node1\n' > /mnt/hosts &&
mount --bind /mnt/hosts /etc/hosts &&
"""
_SET_UP = 'hostname "node$0" && ip link set lo up && echo ready && exec sleep infinity'


class NotPermittedError(UserError):
    """This machine does not allow namespaces."""

    def __init__(self, reason: str):
        super().__init__(f"this machine does not allow network namespaces ({reason}); try as root")


class Node:
    """A node, and what runs on it.

    Args:
        number: its number, 0 or 1.
        first: the first node, for the second one.

    Attributes:
        disk: directory of the disk of 32 MiB that both nodes share; it is lost with them.

    Raises:
        NotPermittedError: if this machine does not allow it.
    """

    def __init__(self, number: int, first: "Node | None" = None):
        self.number, self._commands = number, []
        isolate = [*first.enter, "unshare"] if first else ["unshare", "--user", "--map-root-user"]
        # The second node copies the mounts of the first.
        script = _SET_UP if first else _DISK + _SET_UP
        command = [*isolate, *_NAMESPACES, *_DIES_WITH_THIS, "sh", "-c", script, str(number)]
        with _missing_programs():
            self._holder = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        if self._holder.stdout.readline() != "ready\n":
            raise NotPermittedError(self._holder.communicate()[1].strip())
        self.disk = Path(f"/proc/{self._holder.pid}/root/mnt")

    @property
    def enter(self) -> list[str]:
        """Beginning of a command that runs on this node."""
        return ["nsenter", "--target", str(self._holder.pid), "--user", "--preserve-credentials", *_NAMESPACES]

    def connect(self, other: "Node") -> None:
        """Lay a cable to another node."""
        self._ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(other._holder.pid))
        for node in (self, other):
            node._ip("address", "add", f"10.0.0.{node.number + 1}/24", "dev", "eth0")
            node.set_link("up")

    def set_link(self, state: str) -> None:
        """Set the interface ``up`` or ``down``."""
        self._ip("link", "set", "eth0", state)

    def _ip(self, *words: str) -> None:
        done = subprocess.run([*self.enter, "ip", *words], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise NotPermittedError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def start(self, *command: object, log: Path | None = None, cwd: Path = ROOT) -> subprocess.Popen:
        """Start a command. When it is killed, all its descendants are, as when a machine fails.

        Args:
            command: program and arguments.
            log: file to append its output to; without one, it prints.
            cwd: working directory; the default is the checkout.
        """
        isolate = [*self.enter, f"--wd={cwd}", *_DIES_WITH_THIS, "unshare", "--pid", "--fork", "--kill-child"]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("a")) if log else None
            self._commands.append(
                subprocess.Popen([*isolate, *words_of(*command)], stdout=output, stderr=output, start_new_session=True)
            )
        return self._commands[-1]

    def launchers(self) -> list[int]:
        """Return the process ids of the programs that run here, such as ``torchrun``."""
        running = [command.pid for command in self._commands if command.poll() is None]
        return [launcher for unshare in running for launcher in children(unshare)]

    def ranks(self) -> list[int]:
        """Return the process ids of the training processes that ``torchrun`` has started here."""
        return [rank for launcher in self.launchers() for rank in children(launcher)]

    def close(self) -> None:
        """Kill everything on this node; its namespaces disappear with it."""
        for process in (*self._commands, self._holder):
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _missing_programs() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotPermittedError(f"{error.filename} is not installed") from None


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two connected nodes, and remove them with all that runs on them.

    Raises:
        NotPermittedError: if this machine does not allow it.
    """
    with contextlib.ExitStack() as stack:
        first = Node(0)
        stack.callback(first.close)
        second = Node(1, first)
        stack.callback(second.close)
        first.connect(second)
        yield first, second
