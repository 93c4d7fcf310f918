"""Code of a user's directory: its import, and errors in it as one message that names the file and the line."""

import contextlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError


def module_of_same_name(path: Path) -> str | None:
    """Return the file of the module that Python would import in place of a directory; None if there is none."""
    spec = importlib.util.find_spec(path.name)
    if spec is None or str(path) in (spec.submodule_search_locations or ()):
        return None
    return str(spec.origin)


def import_directory(path: Path) -> None:
    """Import a directory under its name, with the modules of its folders ``tasks`` and ``models``, as fairseq does.

    fairseq puts the parent first on the search path, where anything beside the directory hides a module of Python.
    """
    parent = str(path.parent)
    if parent not in sys.path:
        sys.path.append(parent)
    importlib.import_module(path.name)
    for folder in ("tasks", "models"):
        for module in pkgutil.iter_modules([path / folder]):
            importlib.import_module(f"{path.name}.{folder}.{module.name}")


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
