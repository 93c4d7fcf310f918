"""Options of commands: a dataclass states the name, type, default and help of each once, and becomes a parser.

The help of an option is its entry under ``Attributes:`` in the docstring of its dataclass. A ``bool`` becomes a flag, a
``Literal`` a choice, ``tuple[X, ...]`` takes several values, and ``X | None`` may be omitted. Placeholder, range and
position are stated with the type, see :class:`Argument` and the types below it. If the type is itself a dataclass of
:class:`Options`, its fields become options in the place of the field.
"""

import argparse
import difflib
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from mae_lm_fairseq.utils.errors import meant
from mae_lm_fairseq.utils.files import is_utf8, writable_file
from mae_lm_fairseq.utils.ranges import Range


@dataclass(frozen=True)
class Argument(Range):
    """Annotation of a field's type, with the range of a number.

    Attributes:
        metavar: placeholder of the value.
        positional: whether the value has no option in front.
        is_first: whether it stands before the other positional ones, whatever the order of the fields.
        rest: whether the field takes all words after ``--``; if it is positional, all words that nothing else takes, in
            their order.
        parse: converts a word; raises ValueError or ArgumentTypeError.
    """

    metavar: str | None = None
    positional: bool = False
    is_first: bool = False
    rest: bool = False
    parse: Callable[[str], Any] | None = None


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
            has_many = kind.is_many and value is not None
            for item in value if has_many else [value]:
                if problem := kind.problem(item):
                    raise ValueError(f"{name} {item} {problem}")


@dataclass(frozen=True)
class FieldType:
    """Type of a field: the type of a value, whether there are several, choices, annotation and default."""

    type: Any
    is_many: bool
    choices: tuple | None
    argument: Argument
    default: Any = None

    @property
    def is_options(self) -> bool:
        """Whether it is a dataclass of options, whose fields are arguments."""
        return isinstance(self.type, type) and issubclass(self.type, Options)

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with a value."""
        if self.choices and value is not None and value not in self.choices:
            return f"is not one of {', '.join(self.choices)}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self.argument.problem(value) if is_number else None


def field_types(options: type) -> dict[str, FieldType]:
    """Return the types of all fields by name, in their order."""
    hints = typing.get_type_hints(options, include_extras=True)
    kinds = {}
    for field in fields(options):
        kinds[field.name] = replace(_field_type(hints[field.name]), default=field.default)
    return kinds


def argument_types(options: type) -> dict[str, FieldType]:
    """Return the types of all arguments by name: the fields, and in place of other options the fields of those."""
    arguments: dict[str, FieldType] = {}
    for name, kind in field_types(options).items():
        arguments |= argument_types(kind.type) if kind.is_options else {name: kind}
    return arguments


def _field_type(hint: Any, argument: Argument = Argument()) -> FieldType:
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        annotated, annotation = parameters
        inner = _field_type(annotated, argument)
        changed = {name: value for name, value in vars(annotation).items() if value != getattr(Argument, name)}
        return replace(inner, argument=replace(inner.argument, **changed))
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in parameters if kind is not type(None)]
        return _field_type(kinds[0], argument)
    if origin in (tuple, list, Sequence):
        return replace(_field_type(parameters[0], argument), is_many=True)
    if origin is Literal:
        return FieldType(type(parameters[0]), False, parameters, argument)
    return FieldType(hint, False, None, argument)


def helps(options: type) -> dict[str, str]:
    """Return the entries under ``Attributes:`` of a class and its bases, by field, without final period and markup.

    Those of fields that are themselves options are among them.
    """
    entries: dict[str, str] = {}
    for kind in field_types(options).values():
        if kind.is_options:
            entries |= helps(kind.type)
    for documented in reversed(options.__mro__):
        docstring = inspect.cleandoc(documented.__doc__ or "")
        _, _, listed = docstring.partition("Attributes:\n")
        section = re.split(r"\n(?=\S)", listed)[0]
        for names, text in re.findall(r"^ {4}(\w[\w, ]*): ((?:.*\n?)(?:^ {8,}.*\n?)*)", section, re.M):
            one_line = " ".join(text.split()).removesuffix(".").replace("``", "")
            entry = re.sub(r":\w+:`~?([^`]*)`", r"\1", one_line)
            entries |= dict.fromkeys(names.split(", "), entry)
    return entries


HINTS = {"--learning-rate": "the learning rate is --lr"}
"""Advice about an option that users look for in a command that lacks it."""


def unknown_options(words: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the options among some words that are neither known nor abbreviate a known one."""
    names = _names(word for word in words if re.match(r"--\w", word))
    return [name for name in names if not any(option.startswith(name) for option in known)]


def _names(words: Iterable[str]) -> Iterable[str]:
    """Return words without the values that follow ``=``, each once."""
    return dict.fromkeys(word.partition("=")[0] for word in words)


def suggestions(unknown: Iterable[str], known: Iterable[str], hints: Mapping[str, str] = HINTS) -> str:
    """Return the end of an error message about unknown options: what to use in place of each, if one resembles it."""
    advice = ""
    for name in _names(word for word in unknown if word.startswith("-")):
        options = [name] if name in hints else difflib.get_close_matches(name, [*known, *hints], 1, cutoff=0.8)
        for option in options:
            is_hint = option in hints and option not in known
            advice += f"; {hints[option]}" if is_hint else f"; is {option} meant?"
    return advice


def choice_meant(message: str) -> str:
    """Return the end of an error message of argparse about a choice: which other one is meant, if one resembles it."""
    words = re.findall(r"[\w.-]+", message.partition("invalid choice: ")[2])
    if not words:
        return ""
    refused, *choices = words
    return meant(refused, choices)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one message."""

    def error(self, message: str) -> typing.NoReturn:
        _, _, unknown = message.partition(UNRECOGNIZED)
        advice = suggestions(unknown.split(), self._option_string_actions) + choice_meant(message)
        message = f"error: {message}{advice}; {self.prog} --help describes the arguments\n"
        # A name that is not UTF-8 could not be printed.
        self.exit(2, message.encode(errors="backslashreplace").decode())

    def refuse(self, unknown: Sequence[str]) -> None:
        """End the program if there are words that the parser does not know."""
        if unknown:
            self.error(f"{UNRECOGNIZED}{' '.join(unknown)}")


def make_parser(options: type, description: str | None, prog: str) -> Parser:
    """Return the parser of a dataclass of options, whose help begins with a description."""
    kinds = argument_types(options)
    others = [kinds[name].argument.metavar for name in _rest_fields(kinds, is_positional=True)]
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog, description=description, formatter_class=formatter, allow_abbrev=not others)
    texts = helps(options)
    for name in sorted(kinds, key=lambda name: not kinds[name].argument.is_first):
        kind = kinds[name]
        if kind.argument.rest:  # since Python 3.12.7, argparse gives the values of unknown options to a positional "*"
            continue
        settings = _argument_settings(kind, texts[name])
        if kind.argument.positional:
            parser.add_argument(name, **settings)
        else:
            parser.add_argument(_option(name), **settings, required=kind.default is MISSING)
    for metavar in others:
        usage = parser.format_usage().removeprefix("usage: ").rstrip()
        parser.usage = f"{usage} [{metavar} ...]"
    return parser


def _rest_fields(kinds: Mapping[str, FieldType], is_positional: bool) -> list[str]:
    """Return the fields that take all words after ``--``, or those that take all words that nothing else takes."""
    rest = {name: kind.argument for name, kind in kinds.items() if kind.argument.rest}
    return [name for name, argument in rest.items() if argument.positional == is_positional]


def _option(name: str) -> str:
    """Return the option of a field."""
    return f"--{name.replace('_', '-')}"


def _argument_settings(kind: FieldType, text: str) -> dict[str, Any]:
    """Return the settings of argparse for a field."""
    default = kind.default
    text = text.replace("%", "%%")
    if kind.choices and kind.argument.metavar:
        text += f"; one of {', '.join(kind.choices)}"
    is_unset = default in (MISSING, None, ()) or default is False  # 0 is a default, though it equals False
    if not is_unset and "(default" not in text:
        text += f" (default: {default})"
    if kind.type is bool:
        return {"help": text, "action": "store_true"}
    settings = {
        "help": text,
        "type": kind.argument.parse or kind.type,
        "choices": kind.choices,
        "metavar": kind.argument.metavar,
        "default": None if default is MISSING else default,
    }
    if kind.argument.positional and default is not MISSING:
        settings["nargs"] = "*" if kind.is_many else "?"
    elif kind.is_many:
        settings["nargs"] = "+"
    return settings


def parse(options: type, words: Sequence[str], description: str | None, prog: str) -> Any:
    """Return the options that the words of a command line state; end the program with exit code 2 if they are wrong."""
    parser = make_parser(options, description, prog)
    kinds = argument_types(options)
    take_rest = _rest_fields(kinds, is_positional=False)
    take_unknown = _rest_fields(kinds, is_positional=True)

    end = words.index("--") if take_rest and "--" in words else len(words)
    before, after = words[:end], words[end + 1 :]
    if not take_unknown:
        # argparse would rather say that the option that was misspelt is missing.
        parser.refuse(unknown_options(before, parser._option_string_actions))
    parsed, unknown = parser.parse_known_args(before)
    if not take_unknown:
        parser.refuse(unknown)

    values = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(parsed).items()}
    values |= dict.fromkeys(take_unknown, tuple(word for word in unknown if word != "--"))
    values |= dict.fromkeys(take_rest, tuple(after))
    try:
        parsed = _with_values(options, values)
    except ValueError as problem:
        name, _, message = str(problem).partition(" ")
        parser.error(f"{_option(name)} {message}" if name in kinds else str(problem))

    paths = [os.path.realpath(value) for value in values.values() if isinstance(value, Path)]
    for text in (*words, *paths):
        if not is_utf8(text):
            parser.error(f"{text!a} is not UTF-8; rename the file or directory")
    return parsed


def _with_values(options: type, values: Mapping[str, Any]) -> Any:
    """Return an object of options, given the values of :func:`argument_types`."""
    own_values = {}
    for name, kind in field_types(options).items():
        own_values[name] = _with_values(kind.type, values) if kind.is_options else values[name]
    return options(**own_values)
