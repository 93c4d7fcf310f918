"""Options of commands: a dataclass states the name, type, default and help of each once, and becomes a parser.

The help of an option is its entry under ``Attributes:`` in the docstring of its dataclass. A ``bool`` becomes a flag, a
``Literal`` a choice, ``tuple[X, ...]`` takes several values, and ``X | None`` may be omitted. Placeholder, range and
position are stated with the type, see :class:`Argument` and the types below it.
"""

import argparse
import difflib
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from mae_lm_fairseq.utils.files import is_utf8, writable_file


@dataclass(frozen=True)
class Argument:
    """Annotation of a field's type.

    Attributes:
        metavar: placeholder of the value.
        positional: whether the value has no option in front.
        rest: whether the field takes all words after ``--``; if it is positional, all words that nothing else takes, in
            their order.
        parse: converts a word; raises ValueError or ArgumentTypeError.
        at_least, above, at_most, below: range of a number, which is finite in any case.
    """

    metavar: str | None = None
    positional: bool = False
    rest: bool = False
    parse: Callable[[str], Any] | None = None
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a number."""
        within = value >= self.at_least and value > self.above and value <= self.at_most and value < self.below
        if within and math.isfinite(value):
            return None
        limits = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        stated = [f"{name} {limit}" for name, limit in limits.items() if math.isfinite(limit)]
        return f"must be {' and '.join(stated) or 'finite'}"


UNRECOGNIZED = "unrecognized arguments: "
Count = Annotated[int, Argument("N", at_least=1)]
Natural = Annotated[int, Argument("N", at_least=0)]
Probability = Annotated[float, Argument("P", above=0, below=1)]
Fraction = Annotated[float, Argument("F", above=0, at_most=1)]
LearningRate = Annotated[float, Argument("LR", above=0)]
Model = Annotated[Path, Argument("MODEL", positional=True)]
Directory = Annotated[Path, Argument("DIR")]
File = Annotated[Path, Argument("FILE")]
OutputFile = Annotated[Path, Argument("FILE", parse=writable_file)]
Rest = Annotated[tuple[str, ...], Argument(rest=True)]


class Options:
    """Base of the dataclasses of options.

    Raises:
        ValueError: if a number is out of its range, or a value no choice; the message begins with the field's name.
    """

    def __post_init__(self):
        for name, kind in field_types(type(self)).items():
            value = getattr(self, name)
            for one in value if kind.is_many and value is not None else [value]:
                is_number = isinstance(one, int | float) and not isinstance(one, bool)
                if is_number and (problem := kind.argument.problem(one)):
                    raise ValueError(f"{name} {one} {problem}")
                if kind.choices and one is not None and one not in kind.choices:
                    raise ValueError(f"{name} {one} is not one of {', '.join(kind.choices)}")


@dataclass(frozen=True)
class FieldType:
    """Type of a field: the type of a value, whether there are several, choices, and the annotation."""

    type: Any
    is_many: bool
    choices: tuple | None
    argument: Argument


def field_types(options: type) -> dict[str, FieldType]:
    """Return the types of all fields by name, in their order."""
    hints = typing.get_type_hints(options, include_extras=True)
    return {field.name: _field_type(hints[field.name]) for field in fields(options)}


def _field_type(hint: Any, argument: Argument = Argument()) -> FieldType:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        inner = _field_type(of[0], argument)
        changed = {name: value for name, value in vars(of[1]).items() if value != getattr(Argument, name)}
        return replace(inner, argument=replace(inner.argument, **changed))
    if origin in (Union, types.UnionType):
        return _field_type(next(kind for kind in of if kind is not type(None)), argument)
    if origin in (tuple, list, Sequence):
        inner = _field_type(of[0], argument)
        return FieldType(inner.type, True, inner.choices, inner.argument)
    if origin is Literal:
        return FieldType(type(of[0]), False, of, argument)
    return FieldType(hint, False, None, argument)


def helps(options: type) -> dict[str, str]:
    """Return the entries under ``Attributes:`` of a class and its bases, by field, without final period and markup."""
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        _, _, listed = (inspect.cleandoc(kind.__doc__ or "")).partition("Attributes:\n")
        section = re.split(r"\n(?=\S)", listed)[0]
        for names, text in re.findall(r"^ {4}(\w[\w, ]*): ((?:.*\n?)(?:^ {8,}.*\n?)*)", section, re.M):
            text = " ".join(text.split()).removesuffix(".").replace("``", "")
            found |= dict.fromkeys(names.split(", "), re.sub(r":\w+:`~?([^`]*)`", r"\1", text))
    return found


HINTS = {"--learning-rate": "the learning rate is --lr"}
"""Advice about an option that users look for in a command that lacks it."""


def unknown_options(words: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the options among some words that are neither known nor abbreviate a known one."""
    names = dict.fromkeys(word.partition("=")[0] for word in words if re.match(r"--\w", word))
    return [name for name in names if not any(option.startswith(name) for option in known)]


def suggestions(unknown: Iterable[str], known: Iterable[str], hints: Mapping[str, str] = HINTS) -> str:
    """Return the end of an error message about unknown options: what to use in place of each, if one resembles it."""
    known = list(known)
    told = ""
    for name in dict.fromkeys(word.partition("=")[0] for word in unknown):
        if not name.startswith("-"):
            continue
        near = [name] if name in hints else difflib.get_close_matches(name, [*known, *hints], 1, cutoff=0.8)
        for option in near:
            told += f"; {hints[option]}" if option in hints and option not in known else f"; is {option} meant?"
    return told


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one message."""

    def error(self, message: str) -> typing.NoReturn:
        told = suggestions(message.partition(UNRECOGNIZED)[2].split(), self._option_string_actions)
        message = f"error: {message}{told}; {self.prog} --help describes the arguments"
        # A name that is not UTF-8 could not be printed.
        self.exit(2, message.encode(errors="backslashreplace").decode() + "\n")


def make_parser(options: type, description: str | None, prog: str) -> Parser:
    """Return the parser of a dataclass of options, whose help begins with a description."""
    of = field_types(options)
    others = [kind.argument.metavar for kind in of.values() if kind.argument.rest and kind.argument.positional]
    parser = Parser(
        prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=not others
    )
    texts = helps(options)
    for field, (name, kind) in zip(fields(options), of.items(), strict=True):
        if kind.argument.rest:  # since Python 3.12.7, argparse gives the values of unknown options to a positional "*"
            continue
        default = field.default
        text = texts[name].replace("%", "%%")
        text += f"; one of {', '.join(kind.choices)}" if kind.choices and kind.argument.metavar else ""
        is_unset = default in (MISSING, None, ()) or default is False  # 0 is a default, though it equals False
        is_stated = not is_unset and "(default" not in text
        how: dict[str, Any] = {"help": f"{text} (default: {default})" if is_stated else text}
        if kind.type is bool:
            how |= {"action": "store_true"}
        else:
            how |= {"type": kind.argument.parse or kind.type, "choices": kind.choices, "metavar": kind.argument.metavar}
            how |= {"nargs": "+"} if kind.is_many else {}
            how |= {"default": None if default is MISSING else default}
        if kind.argument.positional:
            how |= {} if default is MISSING else {"nargs": "*" if kind.is_many else "?"}
            parser.add_argument(name, **how)
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", **how, required=default is MISSING)
    for metavar in others:
        parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [{metavar} ...]"
    return parser


def parse(options: type, words: Sequence[str], description: str | None, prog: str) -> Any:
    """Return the options that the words of a command line state; end the program with exit code 2 if they are wrong."""
    parser, kind_of = make_parser(options, description, prog), field_types(options)
    rest = [name for name, kind in kind_of.items() if kind.argument.rest and not kind.argument.positional]
    end = words.index("--") if rest and "--" in words else len(words)
    takes_all = [name for name, kind in kind_of.items() if kind.argument.rest and kind.argument.positional]
    # argparse would rather say that the option that was misspelt is missing.
    unknown = [] if takes_all else unknown_options(words[:end], parser._option_string_actions)
    parsed, unknown = (None, unknown) if unknown else parser.parse_known_args(words[:end])
    if unknown and not takes_all:
        parser.error(f"{UNRECOGNIZED}{' '.join(unknown)}")
    given = vars(parsed)
    given |= {name: [word for word in unknown if word != "--"] for name in takes_all}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        parsed = options(**given, **dict.fromkeys(rest, tuple(words[end + 1 :])))
    except ValueError as problem:
        name, _, message = str(problem).partition(" ")
        parser.error(f"--{name.replace('_', '-')} {message}" if name in kind_of else str(problem))
    paths = [os.path.realpath(value) for value in vars(parsed).values() if isinstance(value, Path)]
    for text in (*words, *paths):
        if not is_utf8(text):
            parser.error(f"{text!a} is not UTF-8; rename the file or directory")
    return parsed
