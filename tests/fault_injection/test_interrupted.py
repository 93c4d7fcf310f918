"""Commands that are killed at some of their calls; scripts/fault_injection.py kills them at every one."""

import logging
from collections.abc import Iterator

import pytest

from tests.fault_injection.interrupted import Case, cases, killed_at, undisturbed
from tests.fault_injection.training import Workplace, prepare_to_fork

NAMES = (
    *("mae-lm prepare", "mae-lm prepare --shards 2", "mae-lm prepare with a tokenizer in the output directory"),
    *("mae-lm bundle", "mae-lm export", "mae-lm average", "results and report, over old ones"),
    *("products that other ones depend on", "the report of a study, over an old one"),
    *("the end of a training of a study", "mae-lm finetune tagging, over the results of another model"),
)
LAST = 12
"""Calls at the end of a command, which make its files visible; all of them are tried."""
SLOW = {
    "mae-lm export": 3,
    "the report of a study, over an old one": 6,
    "mae-lm finetune tagging, over the results of another model": 5,
}
"""Fewer of them for commands that load transformers or draw figures."""
pytestmark = pytest.mark.integration  # starts processes


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Workplace]:
    prepare_to_fork()
    logging.disable(logging.WARNING)
    yield Workplace(tmp_path_factory.mktemp("interrupted"), "")
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def all_cases(place) -> dict[str, Case]:
    return {case.name: case for case in cases(place)}


def test_every_case_is_tested(all_cases):
    assert {*NAMES} == all_cases.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_command_ends_as_if_undisturbed(place, all_cases, name):
    case, directory = all_cases[name], place.directory / "case"
    expected, calls = undisturbed(case, directory)
    last = SLOW.get(name, LAST)
    numbers = sorted({*range(1, calls, max(1, calls // 4)), *range(max(1, calls + 1 - last), calls + 1)})
    problems = [killed_at(case, directory, number, expected) for number in numbers]
    assert [problem for problem in problems if problem] == []
