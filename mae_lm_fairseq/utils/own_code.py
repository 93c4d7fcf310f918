"""Errors in classes and functions of a user's directory: one message that names the file and the line."""

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError


@contextlib.contextmanager
def errors_name(option: str, component: Any, duty: str) -> Iterator[None]:
    """Let the errors of a block name an option, and file and line of the class or function that it stands for.

    Args:
        duty: what the component must do, which the message says at its end.

    Raises:
        UserError: if the block raises any error.
    """
    try:
        yield
    except Exception as error:
        place = _place(component, error)
        raise UserError(f"{option}{place}: {type(error).__name__}: {error}; {duty}") from error


def _place(component: Any, error: Exception) -> str:
    """Return file and line, in parentheses: where the file raises the error, or else where the component begins."""
    try:
        file = inspect.getsourcefile(component)
        _, line = inspect.getsourcelines(component)
    except (OSError, TypeError):  # it has no source, as a functools.partial
        return ""
    return f" ({place_of(error, Path(file)) or f'{file}, line {line}'})"


def place_of(error: Exception, path: Path) -> str | None:
    """Return file and line of the innermost code of a file or directory that raises an error; None if none does."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        if Path(file).is_relative_to(path):
            return f"{file}, line {line}"
    return None
