"""Fault definitions, their results, and scripts/results/robustness, which scripts/write_docs.py writes from them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.output import markdown_table

_RESULTS = Path(__file__).parents[2] / "scripts/results"
RESULTS = _RESULTS / "fault-injection.json"
TWO_NODES = _RESULTS / "two-nodes.json"

HEAD = """\
# Robustness: fault injection

Results of `scripts/fault_injection.py {options}` with {machine}.
`scripts/write_docs.py` generates this page from [fault-injection.json](../fault-injection.json),
which that run wrote at commit 504a5bd (2026-11-21). Faults that were added or renamed since then are not in it.
[guarantees.md](../../../docs/developers/guarantees.md) describes the guarantees that are tested here.

- The moments of the kills and the positions of the damage are drawn from a seed.
- Compared at the end: parameters, optimizer state, number of updates, and position in the data.
- Not compared: the best validation loss that the learning rate scheduler has received. fairseq saves the checkpoint at
  the end of an epoch before it passes the loss of that epoch to the scheduler, so a run that resumes from this
  checkpoint never passes it. Of fairseq's schedulers only `reduce_lr_on_plateau` reads it.
"""

ON_TWO_NODES = """\
## Two nodes

Results of `scripts/fault_injection.py --two-nodes {options}` with {machine}, from
[two-nodes.json](../two-nodes.json). The nodes are network namespaces of one machine.
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
        quick: number of times in ``scripts/fault_injection.py --quick``.
        full: number of times in ``scripts/fault_injection.py``.
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
    """Read the rows from a file written by ``scripts/fault_injection.py``."""
    return [Row(**row) for row in read_json(path)["rows"]]


def document() -> str:
    """Return the text of scripts/results/robustness."""
    return f"{_section(HEAD, RESULTS)}\n{_section(ON_TWO_NODES, TWO_NODES)}"


def _section(head: str, path: Path) -> str:
    results = read_json(path)
    machine = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    options = " ".join([*(["--quick"] if results["quick"] else []), "--json FILE"])
    return f"{head.format(options=options, machine=machine)}\n{table(read(path))}"
