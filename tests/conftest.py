"""Fixtures shared by all tests."""

import argparse
import faulthandler
import getpass
import multiprocessing.util
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fairseq.dataclass.utils
import hypothesis
import pytest
import torch
from fairseq import options
from fairseq_cli import preprocess

from tests.support import ROOT, processes, timeouts
from tests.support.bundles import bundles, checkpoints, text_data  # noqa: F401  fixtures
from tests.support.composing import compose_groups_once
from tests.support.nodes import Node, NotPermittedError, two_nodes

pytest_plugins = ["tests.support.timeouts"]

torch.set_num_threads(1)

# The same examples in every run, and no deadline, so that the gate does not fail at random or on a loaded machine;
# --hypothesis-profile=fresh draws new ones.
hypothesis.settings.register_profile("fresh", deadline=None)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Measure the coverage of this process only: with coverage in the commands that tests start, CI exceeds its time
    # limit.
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

compose_groups_once.start()
if sys.gettrace() is not None:
    fairseq.dataclass.utils.compose = processes.untraced()(fairseq.dataclass.utils.compose)


ENDS_WITHIN_SECONDS = 120
INTEGRATION = {"end_to_end", "fault_injection"}
"""Directories of integration tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as integration tests if they are in such a directory or use a fixture that starts commands."""
    for item in items:
        starts_commands = {"run_cli", "fairseq_train", "train_together", "mae_lm"} & set(
            getattr(item, "fixturenames", ())
        )
        if starts_commands or INTEGRATION & set(item.path.relative_to(ROOT).parts):
            item.add_marker(pytest.mark.integration)


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a temporary directory that is removed at the end, with what killed processes leave there.

    These are the directories of multiprocessing, torchrun and Dask. ``tmp_path`` and compiled kernels stay.
    """
    if hasattr(config, "workerinput"):  # of pytest-xdist, which inherits the environment
        return
    directory = tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before := tempfile.gettempdir())
    # torch's cache, which makes the next session faster.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(before, f"torchinductor_{getpass.getuser()}")))
    os.environ["TMPDIR"] = tempfile.tempdir = directory.name
    config.add_cleanup(directory.cleanup)
    config.add_cleanup(processes.kill_left_processes)
    config.add_cleanup(multiprocessing.util._run_finalizers)  # before, as one of them removes a directory in it


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the server that runs commands. A worker of pytest-xdist that does not end would keep the run from ending."""
    if hasattr(session.config, "workerinput"):
        faulthandler.dump_traceback_later(ENDS_WITHIN_SECONDS, exit=True, file=timeouts._stderr)
    processes.stop_server()


@pytest.fixture(scope="session")
def run_cli() -> Callable:
    """Return the function that runs a command: ``run_cli(["fairseq-train", ...], cwd=..., env=..., timeout=...)``."""
    return processes.run_command


@pytest.fixture(scope="session")
def fairseq_train() -> Callable:
    """Return the function ``fairseq_train("data-bin", ...)``, which does not import torch and fairseq again."""
    return processes.fairseq_train


@pytest.fixture(scope="session")
def mae_lm() -> Callable:
    """``mae_lm("bundle", ..., cwd=directory)`` runs that verb without importing torch and fairseq again."""
    return processes.mae_lm


@pytest.fixture(scope="session")
def train_together() -> Callable:
    """Return the function ``train_together(2, "data-bin", ...)``, which trains in two processes on the CPU."""
    return processes.train_together


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Make two connected nodes; the test is skipped where that is not permitted."""
    try:
        with two_nodes() as made:
            yield made
    except NotPermittedError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory) -> Path:
    """Create a binarised training corpus.

    The vocabulary has 150 subwords that start a word and 50 that do not; blank lines separate documents.
    """
    directory = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    for split, documents in (("train", 200), ("valid", 20)):
        text = "\n\n".join(_document(generator) for _ in range(documents))
        (directory / split).write_text(text + "\n", encoding="utf-8")
    splits = ["--trainpref", directory / "train", "--validpref", directory / "valid"]
    destination = ["--destdir", directory / "data-bin", "--workers", "1"]
    arguments = map(str, ["--only-source", *splits, *destination])
    parsed: argparse.Namespace = options.get_preprocessing_parser().parse_args(list(arguments))
    preprocess.main(parsed)
    preprocess.logger.handlers.clear()  # fairseq-preprocess attaches a log file in the data directory
    return directory / "data-bin"


def _document(generator: random.Random) -> str:
    """Return lines of synthetic words; 80 % of the words are determined by the word before, so there is something to
    learn.
    """
    lines, word = [], generator.randrange(150)
    for _ in range(generator.randint(2, 6)):
        pieces = []
        for _ in range(generator.randint(5, 15)):
            word = (7 * word + 1) % 150 if generator.random() < 0.8 else generator.randrange(150)
            pieces += [f"▁w{word}"] + [f"x{word // 3}"] * (word % 3 == 0)
        lines.append(" ".join(pieces))
    return "\n".join(lines)
