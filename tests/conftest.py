"""Fixtures that the tests share."""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fairseq.dataclass.utils
import pytest
import torch

from mae_lm_fairseq.utils.errors import errors_end_the_program
from tests.support import ROOT
from tests.support.bundles import bundles, checkpoints, text_data  # noqa: F401  fixtures

pytest_plugins = ["tests.support.timeouts"]

torch.set_num_threads(1)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Without coverage, for what is not ours and takes two to five times as long with it; a decorator, too."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


if "PYTEST_XDIST_WORKER" in os.environ:
    # Coverage counts the lines that tests run themselves. In the commands they start it would take CI past its limit.
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

if sys.gettrace() is not None:
    fairseq.dataclass.utils.compose = untraced()(fairseq.dataclass.utils.compose)


def fork(function: Callable, *args, **options) -> multiprocessing.Process:
    """A started process that calls a function, to be interrupted."""

    def call():
        # It is ignored in what a shell without job control has started in its background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        gc.callbacks.clear()  # hypothesis has one, and an interrupt that arrives there is lost
        with errors_end_the_program():
            function(*args, **options)

    process = multiprocessing.get_context("fork").Process(target=call)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return process


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., subprocess.CompletedProcess]:
    """``run_cli(["fairseq-train", ...], cwd=..., env=..., timeout=...)`` runs a command of this environment."""

    def run(command: list, *, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300):
        program, *arguments = map(str, command)
        return subprocess.run(
            [Path(sys.executable).parent / program, *arguments],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            timeout=timeout,
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory, run_cli) -> Path:
    """Binarised text to train on: 150 pieces that start a word, 50 that do not, documents with blank lines between."""
    directory = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    for split, documents in (("train", 200), ("valid", 20)):
        text = "\n\n".join(_document(generator) for _ in range(documents))
        (directory / split).write_text(text + "\n", encoding="utf-8")
    splits = ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    destination = ["--destdir", directory / "data-bin", "--workers", "1"]
    done = run_cli(["fairseq-preprocess", "--only-source", *splits, *destination])
    assert done.returncode == 0, done.stderr
    return directory / "data-bin"


def _document(generator: random.Random) -> str:
    """Some lines of made-up words; four in five follow from the word before, so that there is something to learn."""
    lines, word = [], generator.randrange(150)
    for _ in range(generator.randint(2, 6)):
        pieces = []
        for _ in range(generator.randint(5, 15)):
            word = (7 * word + 1) % 150 if generator.random() < 0.8 else generator.randrange(150)
            pieces += [f"▁w{word}"] + [f"x{word // 3}"] * (word % 3 == 0)
        lines.append(" ".join(pieces))
    return "\n".join(lines)
