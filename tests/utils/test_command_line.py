"""Parsers made from dataclasses of options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    File,
    Natural,
    Options,
    Probability,
    Rest,
    make_parser,
    parse,
)


@dataclass(frozen=True, kw_only=True)
class Base(Options):
    """Base of the example.

    Attributes:
        models: bundles, or checkpoints
            of ``fairseq-train``.
        fast: do less.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    fast: bool = False


@dataclass(frozen=True, kw_only=True)
class Example(Base):
    """An example.

    Attributes:
        text, other: file to read.
        column: what to predict (default: all).
        mask_prob: predict 15 % or so.
        limits: two numbers or more.
        epoch: where to begin.
        words: options of fairseq-train.
    """

    text: File
    other: File | None = None
    column: Literal["UPOS", "XPOS"] | None = None
    mask_prob: Probability = 0.15
    limits: tuple[Count, ...] = ()
    epoch: Natural = 0
    words: Rest = ()


def read(line: str) -> Example:
    return parse(Example, line.split(), "What it does.", "mae-lm example")


def test_words_become_fields():
    assert read("a b --text t --limits 3 4 --fast -- --lr 1") == Example(
        models=(Path("a"), Path("b")), fast=True, text=Path("t"), limits=(3, 4), words=("--lr", "1")
    )
    assert read("a --text t").mask_prob == 0.15


@dataclass(frozen=True, kw_only=True)
class Wrapped(Options):
    """A command that passes on what it does not know.

    Attributes:
        model: the model.
        recipe: the recipe.
        flags: flags of another program.
    """

    model: Annotated[str, Argument("MODEL", positional=True)]
    recipe: str | None = None
    flags: Annotated[tuple[str, ...], Argument("FLAGS", positional=True, rest=True)] = ()


@pytest.mark.parametrize("end", ["", "-- "])
def test_words_that_nothing_takes_keep_their_order(end):
    """Since Python 3.12.7, argparse gives the values of unknown options to positional arguments."""
    options = parse(
        Wrapped, f"m --recipe r {end}--lr 1e-3 --cpu --betas 1 2".split(), "What it does.", "mae-lm example"
    )
    assert options == Wrapped(model="m", recipe="r", flags=("--lr", "1e-3", "--cpu", "--betas", "1", "2"))
    usage = make_parser(Wrapped, "What it does.", "mae-lm example").format_usage()
    assert usage == "usage: mae-lm example [-h] [--recipe RECIPE] MODEL [FLAGS ...]\n"


@dataclass(frozen=True, kw_only=True)
class Holder(Options):
    """A command that holds the options of another.

    Attributes:
        part: the options of the other.
        fast: do less than the other.
        last: the last one.
    """

    part: Example
    fast: bool = False
    last: Count


def test_the_options_of_a_field_are_options():
    line = "a --last 3 --text t --fast --limits 1 -- --lr 1"
    part = read("a --text t --fast --limits 1 -- --lr 1")
    assert parse(Holder, line.split(), None, "mae-lm holder") == Holder(part=part, fast=True, last=3)
    text = " ".join(make_parser(Holder, None, "mae-lm holder").format_help().split())
    assert "--fast do less than the other --text FILE file to read" in text
    assert text.endswith("--epoch N where to begin (default: 0) --last N the last one")


@pytest.mark.parametrize("words", ["--epoch -1", "--mask-prob 2", "--column FEATS"])
def test_a_wrong_option_of_a_field_is_named(words, capsys):
    with pytest.raises(SystemExit):
        parse(Holder, f"a --last 3 --text t {words}".split(), None, "mae-lm holder")
    assert words.split()[0] in capsys.readouterr().err


def test_help_has_every_entry_once():
    text = " ".join(make_parser(Example, "What it does.", "mae-lm example").format_help().split())
    assert text.startswith("usage: mae-lm example [-h] [--fast] --text FILE")
    for part in (
        "What it does.",
        "MODEL bundles, or checkpoints of fairseq-train options:",
        "--fast do less --text FILE file to read --other FILE file to read",
        "--column {UPOS,XPOS} what to predict (default: all)",
        "--mask-prob P predict 15 % or so (default: 0.15)",
        "--limits N [N ...] two numbers or more",
        "--epoch N where to begin (default: 0)",
    ):
        assert text.count(part) == 1
    assert "--words" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a --text t --mask-prob 1", "--mask-prob 1.0 must be above 0 and below 1"),
        ("a --text t --limits 3 0", "--limits 0 must be at least 1"),
        ("a --text t --column FORM", "argument --column: invalid choice"),
        ("a", "the following arguments are required: --text"),
    ],
)
def test_wrong_words_end_with_one_message(line, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        read(line)
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {message}")
    assert printed.endswith("; mae-lm example --help describes the arguments\n")
    assert printed.count("\n") == 1
