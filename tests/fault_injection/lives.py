"""A small pretraining that can be started, killed and started again within a second.

This process imports torch and fairseq and reads the options once; each life is a child forked from it that does what
``fairseq-train`` does then. So it must not compute with several threads itself: :func:`prepare_to_fork` comes first.
"""

import contextlib
import copy
import logging
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # every optimizer imports it, which takes longer than all the rest of a life
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli.train import main as train
from omegaconf import DictConfig

from mae_lm_fairseq.fairseq_patches import processes
from mae_lm_fairseq.fairseq_patches import resuming as checkpoints
from mae_lm_fairseq.text.data_bin import DataBinWriter

WORDS = 60
SETTINGS = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --encoder-layers 1 "
    "--decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2 "
    "--max-positions 32 --tokens-per-sample 24 --sample-break-mode complete_doc --batch-size 8 --cpu --optimizer adam "
    "--lr 1e-3 --lr-scheduler polynomial_decay --warmup-updates 10 --total-num-update 100000 --clip-norm 2.0 "
    "--save-interval-updates 5 --keep-interval-updates 2 --keep-last-epochs 2 --log-format simple --log-interval 5 "
    "--num-workers 1"
)
_GONE_ON = re.compile(r"Loaded checkpoint .* @ (\d+) updates\)")


def prepare_to_fork() -> None:
    """Keeps torch from starting threads, which a forked child would wait for in vain."""
    torch.set_num_threads(1)


def make_data(directory: Path) -> str:
    """Two shards of different size and a validation split of made-up text: what ``fairseq-train`` takes as data."""
    generator = np.random.default_rng(0)
    for shard, documents in (("a", 90), ("b", 60)):
        (directory / shard).mkdir(parents=True)
        lines = "".join(f"\u2581w{word} 1\n" for word in range(WORDS))
        (directory / shard / "dict.txt").write_text(lines, encoding="utf-8")
        for split, number in (("train", documents), ("valid", 4)):
            with DataBinWriter(directory / shard / split, WORDS + 4) as writer:
                for _ in range(number):
                    _write_document(writer, generator)
    return f"{directory / 'a'}:{directory / 'b'}"


def _write_document(writer: DataBinWriter, generator: np.random.Generator) -> None:
    sizes = generator.integers(5, 20, size=4)
    tokens = [np.append(generator.integers(4, WORDS + 4, size=size), 2) for size in sizes]
    writer.write(np.concatenate([*tokens, [2]]), np.array([*(sizes + 1), 1]))  # a blank line at the end


class Life:
    """One start of a training, in a process group of its own.

    Args:
        cfg: what ``fairseq-train`` makes of its arguments.
        log: where its output goes.
        fault: is called in the child before the training.
    """

    def __init__(self, cfg: DictConfig, log: Path, fault: Callable[[], None] | None = None):
        self.log, self.code = log, None
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that reached the child before it has handlers of its own would unwind this process's stack there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        self.pid = os.fork()
        if self.pid == 0:
            _live(cfg, log, fault)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):  # the child does the same, and may be faster
            os.setpgid(self.pid, self.pid)

    def is_over(self) -> bool:
        """Whether it has ended; then ``code`` is its exit code, negative after a signal."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = 120) -> int:
        """The exit code, once it has ended by itself; killed when it takes longer."""
        deadline = time.monotonic() + seconds
        while not self.is_over():
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.01)
        return self.code

    def kill(self) -> None:
        """SIGKILL, to its data workers too."""
        if not self.is_over():
            os.killpg(self.pid, signal.SIGKILL)
            while not self.is_over():
                time.sleep(0.002)

    def output(self) -> str:
        """All that it has written."""
        return self.log.read_text(errors="replace")

    def went_on_from(self) -> int | None:
        """The update that it went on from; None where it did not tell before it was killed."""
        found = _GONE_ON.search(self.output())
        return found and int(found[1])

    def last_words(self) -> str:
        """The one line that tells why it ended, or what it was instead."""
        output = self.output()
        line = output.strip().splitlines()[-1] if output.strip() else "no word"
        return line if line.startswith("error: ") and "Traceback" not in output else f"no clear line: {line}"


def _live(cfg: DictConfig, log: Path, fault: Callable[[], None] | None) -> None:
    """What the child does; it never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        sys.stdout = sys.stderr = open(log, "w", buffering=1)  # noqa: SIM115 until the end of the process
        for descriptor in (1, 2):
            os.dup2(sys.stdout.fileno(), descriptor)
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
        if fault is not None:
            fault()
        distributed_utils.call_main(cfg, train)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        processes.stop_loading_threads()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Training:
    """A training with its directory, over all its lives.

    Args:
        data: what :func:`make_data` has made.
        directory: where its checkpoints and logs go.
        further: arguments of ``fairseq-train``.
    """

    def __init__(self, data: str, directory: Path, *further: str):
        self.directory, self._logs = directory, directory.with_name(f"{directory.name}-logs")
        for path in (self.directory, self._logs):
            path.mkdir(parents=True, exist_ok=True)
        arguments = [data, *SETTINGS, "--save-dir", str(directory), *further]
        parsed = options.parse_args_and_arch(options.get_training_parser(), arguments)
        self._cfg = convert_namespace_to_omegaconf(parsed)
        self._lives = 0

    @property
    def last(self) -> Path:
        """Where the next life goes on from."""
        return self.directory / "checkpoint_last.pt"

    def start(self, updates: int, fault: Callable[[], None] | None = None) -> Life:
        """A life that would go on until ``updates``."""
        self._lives += 1
        cfg = copy.deepcopy(self._cfg)
        cfg.optimization.max_update = updates
        return Life(cfg, self._logs / f"{self._lives}.log", fault)

    def finish(self, updates: int) -> str | None:
        """Trains to the end; what went wrong, or None."""
        life = self.start(updates)
        return None if life.wait() == 0 else f"could not go on: {life.last_words()}"

    def is_saving(self, since: float) -> bool:
        """Whether a checkpoint is being written, or was when it was killed, that was begun after ``since``."""
        with contextlib.suppress(FileNotFoundError):  # it got its name meanwhile
            return any(path.stat().st_mtime > since for path in self.directory.glob("*.pt.tmp"))
        return False

    def saved_updates(self) -> int:
        """After how many updates the newest whole checkpoint was saved; 0 where there is none."""
        return max([0, *map(checkpoints.saved_updates, self.directory.glob("checkpoint*.pt"))])


def difference(one: Path, other: Path) -> str | None:
    """The first thing in which two checkpoints differ as states of training, bit by bit; None where there is none."""
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in (one, other)]
    parts = [
        {
            "model": state["model"],
            "optimizer": state["last_optimizer_state"],
            # Not the best loss that the schedule has seen, which fairseq saves before it hears of an epoch's last one.
            "updates": state["optimizer_history"][-1]["num_updates"],
            "position in the data": state["extra_state"]["train_iterator"],
        }
        for state in states
    ]
    return _difference(*parts, "")


def _difference(one, other, name: str) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{name}: other entries"
        found = (_difference(one[key], other[key], f"{name} {key}".strip()) for key in one)
        return next(filter(None, found), None)
    if isinstance(one, list) and isinstance(other, list):
        return _difference(dict(enumerate(one)), dict(enumerate(other)), name)
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return None if same else name
