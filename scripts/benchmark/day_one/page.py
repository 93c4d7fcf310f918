"""Report of the programme: one Markdown page from the JSON files of the stages."""

from pathlib import Path
from typing import Any

from benchmark.day_one.peers import STEPS, read_steps
from benchmark.day_one.record import read_record
from benchmark.day_one.stages import STAGES, record_path
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import markdown_table

HIDDEN = ("took_seconds",)


def write_report(out: Path) -> Path:
    """Write ``report.md`` and return its path."""
    sections = [_section(out, name) for name in STAGES]
    path = out / "report.md"
    write_text(path, "\n\n".join(["# Day one on a GPU", *sections]) + "\n")
    return path


def _section(out: Path, name: str) -> str:
    """Return a stage's tables: measurements with the same values share one; lists and tables in them follow."""
    title, record = f"## {list(STAGES).index(name)} {name}", read_record(record_path(out, name))
    if record is None:
        return f"{title}\n\nThe stage has not run."
    done = record["measurements"] or _unfinished_steps(record_path(out, name).with_suffix(""))
    state = f"{record['state']}: {len(done)} of {record['planned']} measurements, {record['failed']} failed."
    origin = f"{record['machine']}, {', '.join(f'{key} {value}' for key, value in record['versions'].items())}."
    groups: dict[tuple, list[dict]] = {}
    for measurement in done:
        flat = {key: value for key, value in measurement.items() if not isinstance(value, list | dict)}
        groups.setdefault(tuple(key for key in flat if key not in HIDDEN), []).append(flat)
    tables = [_table(list(columns), rows) for columns, rows in groups.items() if len(columns) > 1]
    nested = [
        f"{measurement['name']}, {key.replace('_', ' ')}:\n\n{_nested(value)}"
        for measurement in done
        for key, value in measurement.items()
        if (isinstance(value, dict) and value) or (isinstance(value, list) and value and isinstance(value[0], dict))
    ]
    return "\n\n".join([title, state, origin, *tables, *nested])


def _unfinished_steps(work: Path) -> list[dict]:
    """Return what a comparison with the peers that was killed has left in its directory."""
    file = work / STEPS
    return [{"name": "steps beside the peers", **read_steps(file)}] if file.exists() else []


def _nested(value: dict | list[dict]) -> str:
    if isinstance(value, dict):
        return _table(["name", "value"], [{"name": name, "value": each} for name, each in value.items()])
    return _table(list(value[0]), value)


def _table(columns: list[str], rows: list[dict]) -> str:
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return markdown_table([column.replace("_", " ") for column in columns], cells)


def _cell(value: Any) -> str:
    """Format a value; a table's cell has neither line breaks nor bars."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return " ".join(str(value).replace("|", "/").split())
