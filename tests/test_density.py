"""The package holds the bounds of CONTRIBUTING.md on how much a reader has to hold at once."""

import pytest

from density import EXPORTED, PACKAGE, Room, room_of_file, rooms_of

NODES = 134_400
"""Nodes of the package without the file of code that exports contain."""
EXPORTED_NODES = 4_500
IDLE = 0.5
"""Uses of idle names per 1,000 nodes."""
HEAVIEST = 45
"""Nodes of the heaviest statement."""
MEDIAN_AND_PERCENTILE = {
    "(root)": (7, 14),
    "commands": (8, 14),
    "core": (9, 15),
    "core/kernels": (12, 21),
    "cost": (8, 15),
    "criterions": (7, 13),
    "fairseq_patches": (6, 13),
    "finetuning": (7, 14),
    "measures": (8, 15),
    "modeling_mae_lm.py": (8, 15),
    "models": (7, 14),
    "optim": (7, 14),
    "statistics": (8, 14),
    "study": (8, 15),
    "tasks": (7, 14),
    "text": (7, 15),
    "trained": (7, 15),
    "training": (7, 14),
    "utils": (6, 14),
    "wrapped": (7, 15),
}
"""Nodes of a statement in each folder: at most these at the median and at the 90th percentile."""


@pytest.fixture(scope="module")
def rooms() -> dict[str, Room]:
    return rooms_of(PACKAGE)


def test_the_package_has_at_most_so_many_nodes(rooms):
    assert rooms["all"].nodes - rooms[EXPORTED].nodes <= NODES
    assert rooms[EXPORTED].nodes <= EXPORTED_NODES
    assert round(rooms["all"].idle_names, 1) <= IDLE
    assert max(statement.nodes for statement in rooms["all"].statements) <= HEAVIEST


def test_statements_are_within_the_bounds_of_their_folder(rooms):
    measured = {name: (room.median, room.percentile) for name, room in rooms.items() if name != "all"}
    assert measured.keys() == MEDIAN_AND_PERCENTILE.keys()
    wrong = {
        name: values
        for name, values in measured.items()
        if any(value > most for value, most in zip(values, MEDIAN_AND_PERCENTILE[name], strict=True))
    }
    assert wrong == {}


def test_layout_and_annotations_do_not_count(tmp_path):
    (tmp_path / "a.py").write_text('def f(x: int) -> int:\n    """Return it."""\n    found = g(\n        x,\n    )\n')
    (tmp_path / "b.py").write_text("def f(x):\n    found = g(x)\n")
    first, second = room_of_file(tmp_path / "a.py"), room_of_file(tmp_path / "b.py")
    assert first.nodes == second.nodes
    assert first.idle == 1
    assert [statement.nodes for statement in first.statements] == [5]


def test_a_table_counts_by_its_largest_entry(tmp_path):
    entries = [f'"{letter}": 1' for letter in "abcd"]
    (tmp_path / "table.py").write_text(f"def f():\n    x = {{{', '.join(entries)}}}\n")
    [statement] = room_of_file(tmp_path / "table.py").statements
    assert statement.nodes == 1 + 1 + (1 + 2 + 3)  # the assignment, its target, and the table
