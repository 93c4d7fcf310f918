"""Errors that the user can fix, and how commands report them."""

import contextlib
import difflib
import signal
import sys
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """An error that the user can fix.

    Args:
        message: names the file, option or value at fault, and what to do about it. Non-printable characters, such as a
            line break in a name that a file contains, are escaped.
    """

    def __init__(self, message: str):
        super().__init__("".join(map(_escaped, message)))


def _escaped(sign: str) -> str:
    return sign if sign.isprintable() else ascii(sign)[1:-1]


class RefusedFile(UserError):
    """A file that would run code when it is loaded."""


class Interrupted(KeyboardInterrupt):
    """A signal that asks the program to end. Like Ctrl-C, it is not caught by ``except Exception``.

    Args:
        message: names the signal, and says what the same command does next.
        number: the signal.
    """

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


@contextlib.contextmanager
def errors_end_the_program() -> Iterator[None]:
    """End the program with the message of a :class:`UserError`, ``OSError``, missing package or memory, or signal.

    The exit code is 1, and after a signal 128 plus its number, as that of a shell.

    Raises:
        SystemExit: if the block raises one of them.
    """
    try:
        yield
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    except ModuleNotFoundError as error:
        raise SystemExit(f"error: {error}; docs/installation.md lists the extras of this package") from error
    except MemoryError as error:
        raise SystemExit("error: not enough memory") from error
    except KeyboardInterrupt as error:
        print(f"error: {str(error) or 'interrupted'}", file=sys.stderr, flush=True)
        raise SystemExit(128 + getattr(error, "number", signal.SIGINT)) from error


def meant(name: str, known: Iterable[str]) -> str:
    """Return the question whether a known name that resembles an unknown one is meant; nothing if none does."""
    near = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    return f"; is {near[0]} meant?" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)
