"""Typed reading of TOML: tables become dataclasses, such as those of command lines, and errors name key and line."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mae_lm_fairseq.utils.errors import UserError

Key = tuple[str | int, ...]
"""Keys that lead to a value: ``("model", 0, "options", "lr")``."""
Table = TypeVar("Table")
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]")
_ASSIGNMENT = re.compile(r"\s*(\"[^\"]+\"|[\w\-]+)\s*=")
_NAMES = {str: "a string", Path: "a path", int: "an integer", float: "a number", bool: "true or false"}


class Document:
    """A TOML document and the lines of its keys.

    Args:
        text: the document.
        name: its file, for error messages.

    Raises:
        UserError: if the text is not TOML.
    """

    def __init__(self, text: str, name: str):
        self.name, self.text = name, text
        try:
            self.content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{name}: {error}") from None
        self.lines = _lines(text)

    def error(self, key: Key, message: str) -> UserError:
        """Return an error about a key, with the line of the key or of the table that it belongs to."""
        known = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in self.lines), None)
        return UserError(f"{self.name}{f', line {self.lines[known]}' if known else ''}: {_written(key)}{message}")

    def read(self, kind: type[Table], table: Any, key: Key = ()) -> Table:
        """Return a table as a dataclass.

        Args:
            kind: the dataclass. Its fields are the table's keys; those without a default are required.
            table: the table.
            key: the keys that lead to the table.

        Raises:
            UserError: if a key is unknown or missing, or a value has another type than its field or is out of range.
        """
        if not isinstance(table, Mapping):
            raise self.error(key, "must be a table")
        hints = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        for name in (name for name in table if name not in names):
            similar = difflib.get_close_matches(name, names, 1)
            advice = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(names)}"
            raise self.error((*key, name), f"unknown key; {advice}")
        for field in fields(kind):
            if field.name not in table and field.default is MISSING and field.default_factory is MISSING:
                raise self.error(key, f"{field.name} is missing")
        values = {name: self.value(hints[name], value, (*key, name)) for name, value in table.items()}
        try:
            return kind(**values)
        except ValueError as problem:
            raise self.error((*key, str(problem).split()[0]), str(problem)) from None

    def value(self, hint: Any, value: Any, key: Key) -> Any:
        """Return a value as the type of a field.

        Raises:
            UserError: if it has another type.
        """
        try:
            return _converted(hint, value)
        except ValueError:
            raise self.error(key, f"{value!r} {_wanted(hint)}") from None


def _converted(hint: Any, value: Any) -> Any:
    kind, of = get_origin(hint) or hint, get_args(hint)
    if _is_union(hint):
        for one in of:
            with suppress(ValueError):
                return _converted(one, value)
    elif kind is tuple and isinstance(value, list):
        return tuple(_converted(of[0], item) for item in value)
    elif kind in (float, Path) and type(value) in ((int, float) if kind is float else (str,)):
        return kind(value)
    elif value in of if kind is Literal else type(value) is kind or (kind is Mapping and isinstance(value, dict)):
        return value
    raise ValueError


def _wanted(hint: Any) -> str:
    """Return what a value should be: the end of an error message."""
    kinds = [one for one in get_args(hint) if one is not NoneType] if _is_union(hint) else [hint]
    if [get_origin(kind) for kind in kinds] == [Literal]:
        return f"is not one of {', '.join(map(repr, get_args(*kinds)))}"
    return f"must be {' or '.join(map(_described, kinds))}"


def _described(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list, each item {_described(get_args(hint)[0])}"
    return " or ".join(map(repr, get_args(hint))) if get_origin(hint) is Literal else _NAMES.get(hint, "a table")


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union)


def _written(key: Key) -> str:
    """Return a key as in ``model[1].options.lr: ``; the items of an array are counted from 1."""
    written = ""
    for part in key:
        written += f"[{part + 1}]" if isinstance(part, int) else f"{'.' * bool(written)}{part}"
    return f"{written}: " if written else ""


def _lines(text: str) -> dict[Key, int]:
    """Return the line of every table and of every key that begins a line."""
    lines: dict[Key, int] = {}
    counts: dict[str, int] = {}
    table: Key = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            first, *rest = header[2].split(".")
            if header[1] == "[[":
                counts[first] = counts.get(first, -1) + 1
                lines.setdefault((first,), number)
            table = (first, counts[first], *rest) if first in counts else (first, *rest)
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault((*table, assignment[1].strip('"')), number)
    return lines
