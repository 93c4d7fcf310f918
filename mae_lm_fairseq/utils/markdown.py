"""Markdown tables."""

from collections.abc import Mapping, Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of strings, without a trailing newline."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def accuracy_cell(row: Mapping[str, float]) -> str:
    """Format an accuracy with its interval (``accuracy``, ``low`` and ``high``, all in [0, 1]) in per cent."""
    return f"{row['accuracy']:.1%} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
