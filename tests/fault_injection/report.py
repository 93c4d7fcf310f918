"""Fault definitions, their results, and the text of docs/robustness.md, which scripts/write_docs.py writes."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.utils.markdown import markdown_table

RESULTS = Path(__file__).parents[2] / "scripts" / "results" / "torture.json"

HEAD = """\
# What runs survive

`scripts/torture.py {options}` tried this on {machine}. This file is written by
`scripts/write_docs.py` from `scripts/results/torture.json`, which that run left. Kills and damage
strike at moments and places drawn from a seed; what is compared at the end are parameters, optimizer state, number of
updates and position in the data. Not compared is the best validation loss that the learning rate scheduler has heard
of: fairseq saves the checkpoint of an epoch's end before it tells the scheduler that epoch's loss, so that a run which
goes on from there never hears it. Of fairseq's schedulers only `reduce_lr_on_plateau` reads it.
"""


@dataclass
class Row:
    """Result of one kind of fault.

    Attributes:
        fault: description of the fault.
        survived_when: condition that must hold afterwards.
        tried: number of tries.
        losses: what was lost, for each try that lost something.
    """

    fault: str
    survived_when: str
    tried: int = 0
    losses: list[str] = field(default_factory=list)

    def record(self, loss: str | None) -> None:
        """Count a try; ``loss`` says what it lost, or is None."""
        self.tried += 1
        if loss is not None:
            self.losses.append(loss)


class Fault(NamedTuple):
    """Fault and the number of times it is tried.

    Attributes:
        rows: tries it that many times in a :class:`~tests.fault_injection.training.Workplace`, and yields rows.
        few: number of times in the tests.
        quick: number of times in ``scripts/torture.py --quick``.
        full: number of times in ``scripts/torture.py``.
    """

    rows: Callable[..., Iterator[Row]]
    few: int
    quick: int
    full: int


def table(rows: Iterable[Row]) -> str:
    """Format rows as a Markdown table."""
    head = ["fault", "survived when", "tried", "survived", "lost"]
    body = [[row.fault, row.survived_when, row.tried, row.tried - len(row.losses), len(row.losses)] for row in rows]
    return markdown_table(head, [list(map(str, row)) for row in body]) + "\n"


def read(path: Path) -> list[Row]:
    """Read the rows from a file written by ``scripts/torture.py``."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def document() -> str:
    """Return the text of docs/robustness.md."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    machine = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    options = " ".join([*(["--quick"] if results["quick"] else []), "--json FILE"])
    return f"{HEAD.format(options=options, machine=machine)}\n{table(read(RESULTS))}"
