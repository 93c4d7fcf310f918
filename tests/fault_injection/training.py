"""Small pretraining run that can be started, killed and resumed within a second.

This process imports torch and fairseq and parses the options once; each training process is a child forked from it that
then does what ``fairseq-train`` does. The parent must therefore not start computing threads: call
:func:`prepare_to_fork` first.
"""

import contextlib
import copy
import logging
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # every optimizer imports it, which takes longer than the rest of a training process
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli.train import main as train
from omegaconf import DictConfig

from mae_lm_fairseq.fairseq_patches import processes, resuming as checkpoints
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
RESUMED = re.compile(r"Loaded checkpoint .* @ (\d+) updates\)")


def prepare_to_fork() -> None:
    """Keep torch from starting threads, which a forked child would wait for forever."""
    torch.set_num_threads(1)


def make_data(directory: Path) -> str:
    """Write two shards of different sizes with a validation set, and return the data argument of ``fairseq-train``."""
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


class TrainingProcess:
    """Training process that leads its own process group.

    Args:
        cfg: the parsed arguments of ``fairseq-train``.
        log: file for its output.
        fault: called in the child before the training.
    """

    def __init__(self, cfg: DictConfig, log: Path, fault: Callable[[], None] | None = None):
        self.log, self.code = log, None
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that reaches the child before it has installed its own handlers would unwind the parent's stack
        # there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        self.pid = os.fork()
        if self.pid == 0:
            _train(cfg, log, fault)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):  # the child does the same, and may be faster
            os.setpgid(self.pid, self.pid)

    def has_ended(self) -> bool:
        """Return whether the process has ended; ``code`` is then its exit code, negative if a signal ended it."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = 240) -> int:
        """Wait until the process ends and return its exit code; kill it after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.01)
        return self.code

    def kill(self) -> None:
        """Send SIGKILL to the process and its data workers."""
        if not self.has_ended():
            os.killpg(self.pid, signal.SIGKILL)
            while not self.has_ended():
                time.sleep(0.002)

    def output(self) -> str:
        """Return everything that the process has printed."""
        return self.log.read_text(errors="replace")

    def resumed_from(self) -> int | None:
        """Return the update that the process resumed from, or None if it was killed before it logged that."""
        message = RESUMED.search(self.output())
        return message and int(message[1])

    def final_error(self) -> str:
        """Return the error message that the output ends with, or "no error message" with the last line."""
        output = self.output()
        line = output.strip().splitlines()[-1] if output.strip() else "no output"
        return line if line.startswith("error: ") and "Traceback" not in output else f"no error message: {line}"


def _train(cfg: DictConfig, log: Path, fault: Callable[[], None] | None) -> None:
    """Train in the child; never returns."""
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
    """Training run and its directory, across all its processes.

    Args:
        data: data argument of ``fairseq-train``.
        directory: for its checkpoints; the logs go beside it.
        further: arguments of ``fairseq-train``.
    """

    def __init__(self, data: str, directory: Path, *further: str):
        self.directory, self._logs = directory, directory.with_name(f"{directory.name}-logs")
        for path in (self.directory, self._logs):
            path.mkdir(parents=True, exist_ok=True)
        arguments = [data, *SETTINGS, "--save-dir", str(directory), *further]
        parsed = options.parse_args_and_arch(options.get_training_parser(), arguments)
        self._cfg = convert_namespace_to_omegaconf(parsed)
        self._processes = 0

    @property
    def last(self) -> Path:
        """Path of the checkpoint that the next process resumes from."""
        return self.directory / "checkpoint_last.pt"

    def start(self, updates: int, fault: Callable[[], None] | None = None) -> TrainingProcess:
        """Start a process that trains up to ``updates``."""
        self._processes += 1
        cfg = copy.deepcopy(self._cfg)
        cfg.optimization.max_update = updates
        return TrainingProcess(cfg, self._logs / f"{self._processes}.log", fault)

    def finish(self, updates: int) -> str | None:
        """Train up to ``updates``; return what went wrong, or None."""
        process = self.start(updates)
        return None if process.wait() == 0 else f"could not resume: {process.final_error()}"

    def is_saving(self, since: float) -> bool:
        """Return whether an unfinished checkpoint exists that was started after the time ``since``."""
        with contextlib.suppress(FileNotFoundError):  # renamed in the meantime
            return any(path.stat().st_mtime > since for path in self.directory.glob(".*.pt.partial"))
        return False

    def saved_updates(self) -> int:
        """Return the number of updates of the newest valid checkpoint; 0 without one."""
        return max([0, *map(checkpoints.saved_updates, self.directory.glob("checkpoint*.pt"))])


class Workplace:
    """Directory for the training runs and files of one fault.

    Args:
        directory: an empty directory.
        data: data argument of ``fairseq-train``.
        seed: seed of all random choices.
    """

    def __init__(self, directory: Path, data: str, seed: int = 0):
        self.data, self.seed, self.random = data, seed, random.Random(seed)
        self.directory, self._number = directory, 0
        self._undisturbed: dict[int, Training] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def training(self, *options: str) -> Training:
        """Return a new training run."""
        self._number += 1
        return Training(self.data, self.directory / f"run-{self._number}", *options)

    def copy(self, training: Training) -> Training:
        """Return a training run with the same checkpoints."""
        twin = self.training()
        shutil.copytree(training.directory, twin.directory, dirs_exist_ok=True)  # keeps the modification times
        return twin

    def undisturbed(self, updates: int) -> Training:
        """Return a training run of ``updates`` updates in one process; it is shared and must not be changed."""
        if updates not in self._undisturbed:
            training = self.training()
            problem = training.finish(updates)
            if problem is not None:
                raise RuntimeError(f"the undisturbed run {problem}")
            self._undisturbed[updates] = training
        return self._undisturbed[updates]


def difference(first: Path, second: Path) -> str | None:
    """Return the first difference between the training states of two checkpoints, bit by bit, or None."""
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in (first, second)]
    parts = [
        {
            "model": state["model"],
            "optimizer": state["last_optimizer_state"],
            # Not the best loss in the scheduler's state: fairseq saves the checkpoint of an epoch's end before it
            # reports that epoch's loss to the scheduler.
            "updates": state["optimizer_history"][-1]["num_updates"],
            "position in the data": state["extra_state"]["train_iterator"],
        }
        for state in states
    ]
    return _difference(*parts, "")


def _difference(value, other, name: str) -> str | None:
    if isinstance(value, dict) and isinstance(other, dict):
        if value.keys() != other.keys():
            return f"{name}: other entries"
        differences = (_difference(value[key], other[key], f"{name} {key}".strip()) for key in value)
        return next(filter(None, differences), None)
    if isinstance(value, list) and isinstance(other, list):
        return _difference(dict(enumerate(value)), dict(enumerate(other)), name)
    same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
    return None if same else name
