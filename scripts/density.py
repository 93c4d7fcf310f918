#!/usr/bin/env python3
"""Measure how much a reader of the package has to hold at once.

    scripts/density.py [--worst N] [FOLDER]

Prints a row for each room (a folder of the package; those inside ``core`` apart, and the file that exports contain):

- nodes: nodes of the syntax tree, without annotations and docstrings: how much there is.
- median, 90th percentile: nodes of a statement in a function. Compound statements count by their header, and a table of
  four or more entries by its largest one: a long plain table is easy to read.
- idle names: uses of names that say nothing (``found``, ``one``, ``each``), per 1,000 nodes.

None of these depends on how the code is laid out in lines. tests/test_density.py holds them.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high

PACKAGE = Path(__file__).resolve().parents[1] / "mae_lm_fairseq"
IDLE_NAMES = {"found", "one", "of", "each", "given", "these", "those", "here", "now", "own", "that"}
TABLE_ENTRIES = 4
"""Displays and calls by keyword with at least so many entries are tables."""
EXPORTED = "modeling_mae_lm.py"
"""The file of code that exports contain repeats what the package computes, so it is a room of its own."""
UNREAD = {"annotation", "returns", "ctx", "type_comment", "type_params"}
"""Fields of syntax nodes that do not count."""
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Statement:
    """A statement in a function: its nodes, and where it is."""

    nodes: int
    place: str


@dataclass
class Room:
    """Contents of the files of a folder."""

    nodes: int = 0
    idle: int = 0
    statements: list[Statement] = field(default_factory=list)

    @property
    def median(self) -> int:
        """Nodes of the median statement."""
        return median_high([statement.nodes for statement in self.statements] or [0])

    @property
    def percentile(self) -> int:
        """90th percentile of the nodes of a statement."""
        ordered = sorted(statement.nodes for statement in self.statements) or [0]
        return ordered[int(0.9 * len(ordered))]

    @property
    def idle_names(self) -> float:
        """Uses of idle names per 1,000 nodes."""
        return 1000 * self.idle / max(self.nodes, 1)

    def add(self, other: "Room") -> None:
        """Add the contents of another room."""
        self.nodes += other.nodes
        self.idle += other.idle
        self.statements += other.statements


def rooms_of(folder: Path) -> dict[str, Room]:
    """Return the rooms of a package by name, from the largest to the smallest, and at the end ``all`` of it."""
    rooms: dict[str, Room] = {}
    whole = Room()
    for path in sorted(folder.rglob("*.py")):
        room = room_of_file(path)
        rooms.setdefault(room_name(path.relative_to(folder)), Room()).add(room)
        whole.add(room)
    by_size = sorted(rooms.items(), key=lambda item: -item[1].nodes)
    return dict(by_size) | {"all": whole}


def room_name(path: Path) -> str:
    """Return the name of the room of a file, given its path in the package."""
    if path.name == EXPORTED:
        return EXPORTED
    folders = path.parts[:-1]
    if not folders:
        return "(root)"
    depth = 2 if folders[0] == "core" else 1
    return "/".join(folders[:depth])


def room_of_file(path: Path) -> Room:
    """Return what one file contains."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    without_docstrings(tree)
    room = Room(nodes=count(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in IDLE_NAMES:
            room.idle += 1
        if isinstance(node, Function):
            for statement in statements_of(node):
                room.statements.append(Statement(header_weight(statement), f"{path}:{statement.lineno}"))
    return room


def without_docstrings(tree: ast.AST) -> None:
    """Remove the docstrings, also those of fields, from a tree."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not is_docstring(statement)]


def is_docstring(statement: ast.AST) -> bool:
    """Tell whether a statement is a string alone."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def parts_of(node: ast.AST, without: tuple[str, ...] = ()) -> Iterator[ast.AST]:
    """Yield the nodes directly below one, as far as a reader reads them."""
    for name, value in ast.iter_fields(node):
        if name in UNREAD or name in without:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
                yield part


def count(node: ast.AST) -> int:
    """Return the number of nodes of a tree."""
    return 1 + sum(map(count, parts_of(node)))


def header_weight(statement: ast.stmt) -> int:
    """Return the weight of a statement without the statements inside of it."""
    return 1 + sum(map(weight, parts_of(statement, without=BODIES)))


def weight(node: ast.AST) -> int:
    """Return the nodes of an expression; a table in it counts by its largest entry, and one for each other."""
    entries = entries_of(node)
    if len(entries) < TABLE_ENTRIES:
        return 1 + sum(map(weight, parts_of(node)))
    weights = [sum(map(weight, entry)) for entry in entries]
    rest = 0
    if isinstance(node, ast.Call):
        rest = weight(node.func) + sum(map(weight, node.args))
    return 1 + rest + max(weights) + len(weights) - 1


def entries_of(node: ast.AST) -> list[list[ast.AST]]:
    """Return the entries of a display, or the keywords of a call; none of other nodes."""
    if isinstance(node, ast.Dict):
        return [[part for part in pair if part is not None] for pair in zip(node.keys, node.values, strict=True)]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [[element] for element in node.elts]
    if isinstance(node, ast.Call):
        return [[keyword] for keyword in node.keywords]
    return []


def statements_of(function: Function) -> Iterator[ast.stmt]:
    """Yield the statements of a function at every depth, without functions and classes inside of it."""
    waiting = list(function.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, Function | ast.ClassDef):
            continue
        yield statement
        for body in BODIES:
            for inner in getattr(statement, body, []):
                waiting += inner.body if isinstance(inner, ast.ExceptHandler | ast.match_case) else [inner]


def main() -> None:
    """Print the table, and the heaviest statements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=PACKAGE, help="folder of a package (default: %(default)s)"
    )
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N heaviest statements, too")
    options = parser.parse_args()
    rooms = rooms_of(options.folder)
    print(f"{'room':20} {'nodes':>8} {'median':>7} {'90 %':>5} {'idle names':>11}")
    for name, room in rooms.items():
        print(f"{name:20} {room.nodes:8,} {room.median:7} {room.percentile:5} {room.idle_names:11.1f}")
    heaviest = sorted(rooms["all"].statements, key=lambda statement: -statement.nodes)
    for statement in heaviest[: options.worst]:
        print(f"{statement.nodes:6} {statement.place}")


if __name__ == "__main__":
    main()
