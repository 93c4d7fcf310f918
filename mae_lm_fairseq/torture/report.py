"""The table of faults: ``python -m mae_lm_fairseq.torture.report FILE`` prints what ``scripts/torture.py`` wrote."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Row:
    """What became of one kind of fault.

    Attributes:
        fault: what was done.
        survived_when: what has to be true afterwards.
        tried: how often.
        losses: for each time that something was lost, what.
    """

    fault: str
    survived_when: str
    tried: int = 0
    losses: list[str] = field(default_factory=list)

    def record(self, loss: str | None) -> None:
        """One more try, and what was lost by it, if anything."""
        self.tried += 1
        if loss is not None:
            self.losses.append(loss)


def table(rows: Iterable[Row]) -> str:
    """In Markdown."""
    head = ["fault", "survived when", "tried", "survived", "lost"]
    body = [[row.fault, row.survived_when, row.tried, row.tried - len(row.losses), len(row.losses)] for row in rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *body)) + "\n"


def read(path: Path) -> list[Row]:
    """The rows of a file that ``scripts/torture.py`` has written."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


if __name__ == "__main__":
    sys.stdout.write(table(read(Path(sys.argv[1]))))
