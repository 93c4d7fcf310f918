"""Published pretraining settings of the papers, each value with its source, from ``published.toml``.

This table is the single source of commands and YAML (``settings.py``) and of docs/reference/recipes.md.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADAM: dict[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-6}
"""Constants of Adam that all sources share."""


@dataclass(frozen=True)
class Setting:
    """A value of a recipe.

    Args:
        value: the value in the unit of its row; None if the source gives only words, or if no source was found.
        source: a key of :data:`SOURCES`; None if no source was found.
        words: the text of the source, if it is more than the value.
    """

    value: Any = None
    source: str | None = None
    words: str | None = None


def _setting(cell: Any, source: str) -> Setting:
    if isinstance(cell, dict):
        return Setting(source=source, **cell)
    return Setting(tuple(cell) if isinstance(cell, list) else cell, source)


def _column(name: str) -> dict[str, Setting]:
    table = dict(_COLUMNS[name])
    other = table.pop("like", None)
    column = _column(other) if other else dict.fromkeys(ROWS, Setting())
    for source, cells in table.items():
        column |= {row: _setting(cell, source) for row, cell in cells.items()}
    return column


SOURCES, ROWS, _COLUMNS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()
PUBLISHED = {name: _column(name) for name in _COLUMNS}
"""The rows of :data:`ROWS` for each paper and size. A cell without a source was not found, and is no recipe."""
