"""``plan.json``: the versions of a plan, and the looks at its results."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import unified_diff
from itertools import islice, pairwise
from pathlib import Path

from mae_lm_fairseq.study.looks import Look
from mae_lm_fairseq.utils.files import read_record, write_record
from mae_lm_fairseq.utils.typed import typed

PLAN = "plan.json"
CONTEXT = 4
"""Lines of a plan before and after a change, which say of what model it is."""


@dataclass(frozen=True)
class Version:
    """A version of a plan: its date and text, and the fingerprints of its files by path."""

    date: str
    plan: str
    files: Mapping[str, str]

    def differs_from(self, earlier: "Version") -> bool:
        """Return whether it differs in more than its date."""
        if self.plan != earlier.plan:
            return True
        # Earlier versions of this package did not list the files of code.
        return not earlier.files.items() <= self.files.items()

    def lines(self) -> list[str]:
        """Return the lines of a plan; files count as lines."""
        files = [f"sha256 of {path}: {fingerprint[:10]}" for path, fingerprint in self.files.items()]
        return files + self.plan.splitlines()


@dataclass(frozen=True)
class History:
    """Content of ``plan.json``: the number of threads of each run, the versions of the plan, and the looks."""

    threads: int
    versions: tuple[Version, ...]
    looks: tuple[Look, ...]

    def write(self, path: Path) -> None:
        """Write it to a file."""
        write_record(path, asdict(self))


def read_history(path: Path) -> History:
    """Read ``plan.json``.

    Raises:
        UserError: if it is damaged.
    """
    remedy = "restore it: it has the number of threads, and the looks at the results"
    return read_record(path, lambda content: typed(content, History), remedy)


@dataclass(frozen=True)
class Change:
    """A change of a plan: its date, the lines that were removed and added, and some around them."""

    date: str
    lines: tuple[str, ...]


def changes(versions: Sequence[Version]) -> list[Change]:
    """Return each change of a plan between its versions."""
    changed = []
    for before, after in pairwise(versions):
        differing = unified_diff(before.lines(), after.lines(), n=CONTEXT, lineterm="")
        stated = []
        for line in islice(differing, 2, None):  # after the names of the versions, which are empty
            text = line[1:]
            is_place = line.startswith("@")
            if text.strip() and not is_place and not text.startswith("#"):
                stated.append(line)
        if not all(line.startswith(" ") for line in stated):
            changed.append(Change(after.date, tuple(stated)))
    return changed
