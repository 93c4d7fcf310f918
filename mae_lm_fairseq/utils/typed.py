"""Typed reading of JSON and TOML: tables become dataclasses, and errors name the key."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import repeat
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mae_lm_fairseq.utils.errors import UserError, meant

Key = tuple[str | int, ...]
"""Keys that lead to a value: ``("model", 0, "options", "lr")``."""
Kind = TypeVar("Kind")


def typed(value: Any, kind: Any) -> Any:
    """Return a value of JSON or TOML as an annotated type.

    Lists become tuples, strings enums or paths, integers floats, and tables dataclasses.

    Raises:
        ValueError: if it is of another type, or a key of a table is unknown or missing, or a value out of range.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        problems = []
        for alternative in arguments:
            try:
                return typed(value, alternative)
            except ValueError as problem:
                if alternative is not NoneType:
                    problems.append(str(problem))
        raise ValueError("; ".join(problems))
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r:.80} is not a list; write [{value!r:.80}]")
        kinds = arguments
        if arguments[-1] is Ellipsis:
            kinds = repeat(arguments[0], len(value))
        return tuple(typed(item, of_item) for item, of_item in zip(value, kinds, strict=True))
    if origin is Mapping and isinstance(value, dict):
        of_keys, of_values = arguments
        return {typed(name, of_keys): typed(item, of_values) for name, item in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        return _dataclass(value, kind)
    if isinstance(kind, type) and issubclass(kind, Enum | Path) and isinstance(value, str):
        return kind(value)
    if origin is Literal:
        if value in arguments:
            return value
        question = meant(str(value), map(str, arguments))
        raise ValueError(f"{value!r:.80} is not one of {', '.join(map(repr, arguments))}{question}")
    if kind is Any or type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"{value!r:.80} is not of type {getattr(kind, '__name__', kind) if origin is None else kind}")


def _dataclass(values: dict[str, Any], kind: type) -> Any:
    types = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    arguments = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name}: {unknown_key(name, known)}")
        try:
            arguments[name] = typed(value, types[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    try:
        return kind(**arguments)
    except TypeError as error:  # a field is missing
        raise ValueError(str(error)) from None


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return the error message about a key that is none of the known ones."""
    return f"unknown key{meant(name, known)}; there are {', '.join(known) or 'none'}"


class Document:
    """A TOML document.

    Raises:
        UserError: if the text is not TOML.
    """

    def __init__(self, text: str, name: str):
        self.name, self.text = name, text
        try:
            self.content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{name}: {error}") from None

    def error(self, key: Key, message: str) -> UserError:
        """Return an error about a key, such as ``model[1].options.lr``; the items of an array are counted from 1."""
        if not key:
            return UserError(f"{self.name}: {message}")
        parts = [f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in key]
        written = "".join(parts).removeprefix(".")
        return UserError(f"{self.name}: {written}: {message}")

    def read(self, kind: type[Kind], value: Any, key: Key = ()) -> Kind:
        """Return a value of the document as a type, see :func:`typed`.

        Raises:
            UserError: if it is of another type; the message begins with the keys that lead to it.
        """
        try:
            return typed(value, kind)
        except ValueError as problem:
            raise self.error(key, str(problem)) from None
