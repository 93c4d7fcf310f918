"""Files that appear whole or not at all."""

import json
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8; a reader sees the old one or all of the new one."""
    temporary = path.with_name(f".{path.name}.partial")
    # Lines end as the text has them, as in the CSV of Python's own writer.
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write data as JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")
