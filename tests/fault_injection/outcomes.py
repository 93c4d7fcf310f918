"""Checks of how a case ends, and of the files that it leaves."""

import contextlib
import io
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError

NO_CRASH = "success, or an error message that says what is wrong"
VALID_OR_NOTHING = f"{NO_CRASH}; the output is complete or absent"

LONGEST_CASE_SECONDS = 120.0
"""The slowest cases train a tokenizer, which takes several seconds."""


class Hang(BaseException):
    """Raised when a case exceeds its time limit. Not an Exception, which the code under test might catch."""


def outcome(action: Callable[[], object]) -> str | None:
    """Run ``action``; return None if it succeeds or ends with an error message, otherwise what is wrong."""
    try:
        with _time_limit(LONGEST_CASE_SECONDS):
            quietly(action)
    except UserError as error:
        return None if len(str(error).splitlines()) == 1 else f"more than one line: {error}"
    except SystemExit as error:
        return None if error.code == 2 else f"exit code {error.code}"  # argparse exits with 2 after its error message
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def ring(number, frame):
        raise Hang(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def quietly(action: Callable[[], Any]) -> Any:
    """Return what ``action`` returns; progress bars, output and warnings are suppressed, exceptions passed on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return action()
    finally:
        logging.disable(before)


def product_outcome(action: Callable[[Path], object], check: Callable[[Path], object], directory: Path) -> str | None:
    """Return the :func:`outcome` of writing a file or directory, or what is wrong with the result.

    Args:
        action: takes a path that does not exist, and may create it.
        check: raises an exception if the file or directory at that path is not valid.
        directory: parent of that path; it must not exist, and is removed afterwards.
    """
    directory.mkdir()
    try:
        product = directory / "product"
        problem = outcome(lambda: action(product))
        left = sorted(path.name for path in directory.iterdir())
        if problem or not left:
            return problem
        return f"left behind: {left}" if left != [product.name] else _problem_of(lambda: check(product))
    finally:
        shutil.rmtree(directory)


def _problem_of(check: Callable[[], object]) -> str | None:
    try:
        check()
    except Exception as error:
        return f"not valid: {type(error).__name__}: {error}"
    return None
