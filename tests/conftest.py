"""Fixtures that the tests share."""

import argparse
import copy
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import fairseq.dataclass.utils
import pytest
import torch
from fairseq import options
from fairseq_cli import preprocess
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.support import ROOT, processes
from tests.support.bundles import bundles, checkpoints, text_data  # noqa: F401  fixtures

pytest_plugins = ["tests.support.timeouts"]

torch.set_num_threads(1)


if "PYTEST_XDIST_WORKER" in os.environ:
    # Coverage counts the lines that tests run themselves. In the commands they start it would take CI past its limit.
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

if sys.gettrace() is not None:
    fairseq.dataclass.utils.compose = processes.untraced()(fairseq.dataclass.utils.compose)


INTEGRATION = {"end_to_end", "fault_injection"}
"""Directories of integration tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these directories, and those that start commands with a fixture; others mark themselves."""
    for item in items:
        starts_commands = {"run_cli", "fairseq_train", "launch_cpu", "mae_lm"} & set(getattr(item, "fixturenames", ()))
        if starts_commands or INTEGRATION & set(item.path.relative_to(ROOT).parts):
            item.add_marker(pytest.mark.integration)


def pytest_sessionfinish() -> None:
    """End the server of the commands."""
    processes.stop_server()


def _parse_once(parse_rule: Callable) -> Callable:
    """Cache how hydra parses an override: fairseq passes some 280 for each configuration, nearly always the same."""
    parsed = {}

    def parse(parser: OverridesParser, override: str, rule: str):
        if (override, rule) not in parsed:
            parsed[override, rule] = parse_rule(parser, override, rule)
        return copy.copy(parsed[override, rule])

    return parse


OverridesParser.parse_rule = _parse_once(OverridesParser.parse_rule)


@pytest.fixture(scope="session")
def run_cli() -> Callable:
    """``run_cli(["fairseq-train", ...], cwd=..., env=..., timeout=...)`` runs a command of this environment."""
    return processes.run_command


@pytest.fixture(scope="session")
def fairseq_train() -> Callable:
    """``fairseq_train("data-bin", ...)`` runs that command without importing torch and fairseq again."""
    return processes.fairseq_train


@pytest.fixture(scope="session")
def mae_lm() -> Callable:
    """``mae_lm("bundle", ..., cwd=directory)`` runs that verb without importing torch and fairseq again."""
    return processes.mae_lm


@pytest.fixture(scope="session")
def launch_cpu() -> Callable:
    """``launch_cpu(2, "--", ...)`` runs scripts/launch_cpu.py without importing torch and fairseq again."""
    return processes.launch_cpu


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory) -> Path:
    """Binarised text to train on: 150 subwords that start a word, 50 that do not; blank lines between documents."""
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
    preprocess.logger.handlers.clear()  # it writes to a file beside the data
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
