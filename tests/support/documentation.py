"""The documentation as data: pages, blocks of commands, links."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

NOTEBOOK = sorted((ROOT / "scripts/results").rglob("README.md"))
"""Notes on the measurements, beside their raw data."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOK]
TESTED_LANGUAGES = ("bash", "python")
_FENCE = re.compile(r"^\s*```(\w*)\s*$")
_MARKER = re.compile(r"^\s*<!-- test: (run|dry run|manual)(?:[:,] (.+))? -->$")
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of commands or Python.

    Attributes:
        page: the file.
        line: number of its first line.
        language: ``bash`` or ``python``.
        text: content.
        test: ``run``, ``dry run``, ``manual``, or empty if the block has no marker.
        detail: the reason of ``manual``, the replacements of ``run``.
    """

    page: Path
    line: int
    language: str
    text: str
    test: str
    detail: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def adapted(self) -> str:
        """Return the text after the replacements that the marker asks for: ``OLD -> NEW, OLD -> NEW``.

        Raises:
            ValueError: if the text does not contain what is to be replaced.
        """
        text = self.text
        for replacement in filter(None, self.detail.split(", ")):
            old, new = replacement.split(" -> ")
            if old not in text:
                raise ValueError(f"{self}: there is no {old!r} to replace")
            text = text.replace(old, new)
        return text

    def commands(self) -> list[str]:
        """Return the command lines, without comments and with continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of Bash and Python of a page."""
    blocks_of_page, before, start = [], "", 0
    language, inside = "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not start:
            language, inside, start = fence[1], [], number + 1
            marker = _MARKER.match(before)
        elif fence:
            if language in TESTED_LANGUAGES:
                test, detail = (marker[1], marker[2] or "") if marker else ("", "")
                blocks_of_page.append(Block(page, start, language, "\n".join(inside) + "\n", test, detail))
            start = 0
        elif start:
            inside.append(line)
        before = line
    return blocks_of_page


def links(page: Path) -> list[str]:
    """Return the targets of the links and images of a page, those to other sites left out."""
    targets = (inline or reference for inline, reference in _LINK.findall(prose(page)))
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the fragments that a page's headings have on GitHub."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
